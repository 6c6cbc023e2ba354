// Text of contigs, reads and candidate dumps to flat arrays, as a Python extension.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dlasm/kernels/packing.hpp"
#include "dlasm/kernels/parallel.hpp"
#include "dlasm/numpy_arrays.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

template <class T>
using InOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// What is wrong with a text; Python adds the name of the file.
struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Text as it may stand in a message: printable ASCII, not too long.
std::string shown(const u8* text, i64 length) {
  constexpr i64 kLongest = 80;
  std::string out;
  for (i64 i = 0; i < std::min(length, kLongest); ++i) {
    const u8 c = text[i];
    if (c >= 0x20 && c < 0x7F) {
      out += static_cast<char>(c);
    } else {
      const char* digits = "0123456789abcdef";
      out += {'\\', 'x', digits[c >> 4], digits[c & 15]};
    }
  }
  return length > kLongest ? out + "..." : out;
}

std::string shown_character(u8 c) {
  return "'" + shown(&c, 1) + "' (character code " + std::to_string(c) + ")";
}

// An array that grows in place where the system can (realloc moves pages, not bytes) and that ends
// as a NumPy array without a copy.
template <class T>
class Growing {
 public:
  Growing() = default;
  explicit Growing(std::size_t n) { extend(n); }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  ~Growing() { std::free(data_); }

  std::size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }

  // Room for `n` more at the end, not initialised.
  T* extend(std::size_t n) {
    if (size_ + n > capacity_) {
      const std::size_t wanted = std::max({size_ + n, capacity_ + capacity_ / 2, std::size_t{16}});
      T* moved = static_cast<T*>(std::realloc(data_, wanted * sizeof(T)));
      if (!moved) throw std::bad_alloc();
      data_ = moved;
      capacity_ = wanted;
    }
    size_ += n;
    return data_ + (size_ - n);
  }
  void append(const T* from, std::size_t n) {
    if (n) std::memcpy(extend(n), from, n * sizeof(T));
  }
  void push(T value) { *extend(1) = value; }

  Out<T> give() {
    if (!data_) extend(1), size_ = 0;
    T* raw = std::exchange(data_, nullptr);
    const std::size_t n = std::exchange(size_, 0);
    capacity_ = 0;
    nb::capsule owner(raw, [](void* p) noexcept { std::free(p); });
    return Out<T>(raw, {n}, owner);
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
};

// ---- characters -------------------------------------------------------------------------------

enum BaseFlag : u8 { kLower = 1, kUnknown = 2, kAmbiguous = 4, kGap = 8, kForeign = 128 };

struct BaseFlags {
  u8 of[256];
  constexpr BaseFlags() : of() {
    for (int c = 0; c < 256; ++c) of[c] = kForeign;
    for (const char* c = "ACGT"; *c; ++c) set(*c, 0);
    for (const char* c = "URYSWKMBDHVX"; *c; ++c) set(*c, kAmbiguous);
    set('N', kUnknown);
    of[static_cast<int>('.')] = kUnknown;  // N of early Illumina pipelines
    of[static_cast<int>('-')] = kGap;
  }
  constexpr void set(char c, u8 flags) {
    of[static_cast<int>(c)] = flags;
    of[c + ('a' - 'A')] = flags | kLower;
  }
};
constexpr BaseFlags kBaseFlags;

struct BaseTally {
  i64 lower = 0, unknown = 0, ambiguous = 0, gap = 0;

  // Counts the bases; gives the place of the first foreign character, or -1.
  i64 add(const u8* base, i64 length) {
    i64 i = 0;
    while (i < length) {
      if (i + 8 <= length) {
        u64 text, foreign;
        std::memcpy(&text, base + i, 8);
        codes_of(text, &foreign);
        if (!(foreign | (text & (0x20 * kEveryByte)))) {
          i += 8;
          continue;
        }
      }
      const i64 stop = std::min(i + 8, length);
      for (; i < stop; ++i) {
        const u8 flags = kBaseFlags.of[base[i]];
        if (flags & kForeign) return i;
        lower += flags & kLower;
        unknown += (flags & kUnknown) != 0;
        ambiguous += (flags & kAmbiguous) != 0;
        gap += (flags & kGap) != 0;
      }
    }
    return -1;
  }
};

struct Range {
  u8 low = 255, high = 0;
  void add(const u8* text, i64 length) {
    u8 least = low, most = high;
    for (i64 i = 0; i < length; ++i) {
      least = std::min(least, text[i]);
      most = std::max(most, text[i]);
    }
    low = least;
    high = most;
  }
};

constexpr u8 kHighestQuality = 126;  // '~', the last printable character

// Explains a quality character that cannot be.
std::string bad_quality(u8 c, int phred_offset) {
  std::string text = "holds the quality character " + shown_character(c) + "; with phred offset " +
                     std::to_string(phred_offset) + " it must be from " +
                     std::to_string(phred_offset) + " to " + std::to_string(kHighestQuality);
  if (phred_offset != 33 && c >= 33 && c <= kHighestQuality) {
    text += "; these qualities look like phred 33, so leave out --phred " +
            std::to_string(phred_offset);
  } else {
    text += "; the file is damaged, get it again or remove the read";
  }
  return text;
}

i64 first_outside(const u8* text, i64 length, int low, int high) {
  for (i64 i = 0; i < length; ++i) {
    if (text[i] < low || text[i] > high) return i;
  }
  return -1;
}

const u8* find(const u8* begin, const u8* end, char c) {
  return begin == end ? nullptr
                      : static_cast<const u8*>(std::memchr(begin, c, std::size_t(end - begin)));
}

bool is_blank(u8 c) { return c == ' ' || c == '\t'; }

// The first byte that is a space or a control character, or `end`.
const u8* find_space(const u8* p, const u8* end) {
  constexpr int kAtOnce = 32;  // a fixed number, so that the compiler uses vectors
  while (end - p >= kAtOnce) {
    u8 least = 255;
    for (int i = 0; i < kAtOnce; ++i) least = std::min(least, p[i]);
    if (least <= ' ') break;
    p += kAtOnce;
  }
  for (; end - p >= 8; p += 8) {
    u64 text;
    std::memcpy(&text, p, 8);
    const u64 small = (text - 0x21 * kEveryByte) & ~text & (0x80 * kEveryByte);
    if (small) return p + count_trailing_zeros(small) / 8;
  }
  while (p < end && *p > ' ') ++p;
  return p;
}

// A decimal number >= 0 such that its integer part is that of the decimal, not of the nearest
// double: 2.99999999999999999 must not become 3. Gives false for anything else.
bool parse_depth(const u8* begin, const u8* end, double* depth) {
  const char* first = reinterpret_cast<const char*>(begin);
  const char* last = reinterpret_cast<const char*>(end);
  double value;
  const auto [stop, problem] = std::from_chars(first, last, value);
  if (stop != last || problem == std::errc::invalid_argument) return false;
  if (problem == std::errc::result_out_of_range)
    value = std::strtod(std::string(first, last).c_str(), nullptr);
  if (!std::isfinite(value) || value < 0) return false;
  const char* exponent_at = std::find_if(first, last, [](char c) { return c == 'e' || c == 'E'; });
  const char* point = std::find(first, exponent_at, '.');
  int exponent = 0;
  if (exponent_at != last) {
    const char* digits = exponent_at + 1 + (exponent_at[1] == '+');
    std::from_chars(digits, last, exponent);
  }
  i64 places = (point - first) + exponent;  // digits of the integer part, without zeros before it
  const char* c = first;
  for (; c != exponent_at && (*c == '0' || *c == '.'); ++c) places -= *c == '0';
  if (places <= 15 && value == std::floor(value) && value > 0) {
    double integer = 0;
    i64 i = 0;
    for (; c != exponent_at && i < places; ++c) {
      if (*c == '.') continue;
      integer = 10 * integer + (*c - '0');
      ++i;
    }
    for (; i < places; ++i) integer *= 10;
    if (integer < value) value = std::nextafter(value, 0.0);
  }
  *depth = value + 0.0;  // no negative zero
  return true;
}

bool parse_count(const u8* begin, const u8* end, i64* count) {
  if (begin == end || end - begin > 18) return false;
  i64 value = 0;
  for (const u8* p = begin; p != end; ++p) {
    if (*p < '0' || *p > '9') return false;
    value = 10 * value + (*p - '0');
  }
  *count = value;
  return true;
}

// ---- names ------------------------------------------------------------------------------------

// Finds names in arrays of values and offsets that are kept elsewhere. Open addressing; a slot is
// 24 bits of the hash and the number of the name plus 1.
class NameIndex {
 public:
  static u64 hash(const u8* name, i64 length) {
    u64 h = static_cast<u64>(length) * 0x9E3779B97F4A7C15ull;
    for (i64 i = 0; i < length; i += 8) {
      u64 word = 0;
      std::memcpy(&word, name + i, static_cast<std::size_t>(std::min<i64>(8, length - i)));
      h = (h ^ word) * 0xD6E8FEB86659FD93ull;
      h ^= h >> 32;
    }
    h *= 0xD6E8FEB86659FD93ull;
    return h ^ (h >> 32);
  }

  // Fetches what a look-up of the name with this hash will read first.
  void prefetch(u64 h) const {
    if (!slots_.empty()) __builtin_prefetch(slots_.data() + (h & mask()));
  }

  // The number of the name with hash `h`, or -1.
  i64 find(const u8* values, const std::int64_t* offsets, const u8* name, i64 length, u64 h) const {
    if (slots_.empty()) return -1;
    for (std::size_t s = h & mask(); slots_[s]; s = (s + 1) & mask()) {
      if (slots_[s] >> kNumberBits != h >> kNumberBits) continue;
      const i64 i = static_cast<i64>(slots_[s] & kNumberMask) - 1;
      const i64 n = offsets[i + 1] - offsets[i];
      if (n == length && !std::memcmp(values + offsets[i], name, static_cast<std::size_t>(n))) {
        return i;
      }
    }
    return -1;
  }

  // Adds the next name, of hash `h`, which must not be there yet.
  void add(const u8* values, const std::int64_t* offsets, u64 h) {
    if (2 * (count_ + 1) > slots_.size()) {
      slots_.assign(std::max<std::size_t>(1024, 4 * slots_.size()), 0);
      for (std::size_t i = 0; i < count_; ++i) {
        put(hash(values + offsets[i], offsets[i + 1] - offsets[i]), i);
      }
    }
    put(h, count_++);
  }

 private:
  static constexpr int kNumberBits = 40;
  static constexpr u64 kNumberMask = (1ull << kNumberBits) - 1;

  std::size_t mask() const { return slots_.size() - 1; }

  void put(u64 h, std::size_t i) {
    std::size_t s = h & mask();
    while (slots_[s]) s = (s + 1) & mask();
    slots_[s] = (h >> kNumberBits << kNumberBits) | (i + 1);
  }

  std::vector<u64> slots_;
  std::size_t count_ = 0;
};

// ---- contigs ----------------------------------------------------------------------------------

enum DepthForm { kNoDepth, kMegahit, kSpades, kMetaHipMer, kDepthForms };

bool begins_with(const u8* p, const u8* end, const char* what) {
  const std::size_t n = std::strlen(what);
  return static_cast<std::size_t>(end - p) >= n && !std::memcmp(p, what, n);
}

// FASTA of contigs, block by block.
class ContigParser {
 public:
  ContigParser() { name_offsets_.push(0); }

  void feed(In<u8> block) {
    const nb::gil_scoped_release release;
    const u8* p = block.data();
    const u8* const end = p + block.shape(0);
    while (p < end) {
      if (line_start_) {
        line_start_ = false;
        in_header_ = *p == '>';
        line_empty_ = !in_header_;
        if (in_header_) {
          header_.clear();
          ++p;
        }
      }
      const u8* const newline = find(p, end, '\n');
      const u8* const stop = newline ? newline : end;
      if (in_header_) {
        header_.insert(header_.end(), p, stop);
      } else {
        sequence(p, stop);
      }
      p = stop;
      if (newline) {
        end_line();
        ++p;
      }
    }
  }

  nb::tuple finish() {
    if (!line_start_) end_line();
    offsets_.push(static_cast<std::int64_t>(bases_.size()));
    nb::dict counts;
    counts["lower_case_bases"] = tally_.lower;
    counts["n_bases"] = tally_.unknown;
    counts["iupac_bases"] = tally_.ambiguous;
    counts["gap_bases"] = tally_.gap;
    counts["crlf_lines"] = crlf_;
    counts["blank_lines"] = blank_;
    nb::tuple forms =
        nb::make_tuple(forms_[kNoDepth], forms_[kMegahit], forms_[kSpades], forms_[kMetaHipMer]);
    return nb::make_tuple(bases_.give(), offsets_.give(), names_.give(), name_offsets_.give(),
                          depth_.give(), circles_.give(), forms, counts);
  }

  i64 records() const { return static_cast<i64>(depth_.size()); }

 private:
  std::string record() const {
    const i64 i = records() - 1;
    return "record " + std::to_string(i + 1) + " (" +
           shown(names_.data() + name_offsets_.data()[i],
                 name_offsets_.data()[i + 1] - name_offsets_.data()[i]) +
           ")";
  }

  void sequence(const u8* p, const u8* stop) {
    if (p == stop) return;
    line_empty_ = line_empty_ && *p == '\r';
    if (carriage_return_) foreign('\r');
    if (stop[-1] == '\r') {  // of the line end, if a line feed follows
      carriage_return_ = true;
      if (p == --stop) return;
    }
    if (!records()) not_fasta(*p);
    const i64 at = tally_.add(p, stop - p);
    if (at >= 0) foreign(p[at]);
    bases_.append(p, static_cast<std::size_t>(stop - p));
  }

  [[noreturn]] static void not_fasta(u8 c) {
    throw ParseError("not FASTA: it begins with " + shown_character(c) + ", not with '>'" +
                     (c == '@' ? " (it looks like FASTQ: are these the reads?)" : "") +
                     "; give the contigs as FASTA");
  }

  [[noreturn]] void foreign(u8 c) const {
    if (!records()) not_fasta(c);
    throw ParseError(
        record() + " holds " + shown_character(c) +
        " in its sequence; only the letters of nucleotides may stand there, so " +
        (c == '\r' ? "convert the line ends to LF" : "get the file again or remove the character"));
  }

  void end_line() {
    if (in_header_) {
      if (!header_.empty() && header_.back() == '\r') {
        header_.pop_back();
        ++crlf_;
      }
      begin_record();
    } else {
      crlf_ += carriage_return_;
      carriage_return_ = false;
      blank_ += line_empty_;
    }
    line_start_ = true;
  }

  void begin_record() {
    while (!header_.empty() && is_blank(header_.back())) header_.pop_back();
    const u8* p = header_.data();
    const u8* const end = p + header_.size();
    const std::string number = std::to_string(records() + 1);
    if (find(p, end, '\r')) {
      throw ParseError("record " + number +
                       " holds a carriage return in its header; convert the line ends to LF");
    }
    while (p < end && is_blank(*p)) ++p;
    const u8* name_end = p;
    while (name_end < end && !is_blank(*name_end)) ++name_end;
    if (p == name_end) {
      throw ParseError("record " + number + " has no id after '>'; give every contig one");
    }
    const u64 h = NameIndex::hash(p, name_end - p);
    const i64 earlier = index_.find(names_.data(), name_offsets_.data(), p, name_end - p, h);
    if (earlier >= 0) {
      throw ParseError("the id " + shown(p, name_end - p) + " is used twice, by records " +
                       std::to_string(earlier + 1) + " and " + number +
                       "; rename one of them (e.g. seqkit rename)");
    }
    offsets_.push(static_cast<std::int64_t>(bases_.size()));
    names_.append(p, static_cast<std::size_t>(name_end - p));
    name_offsets_.push(static_cast<std::int64_t>(names_.size()));
    index_.add(names_.data(), name_offsets_.data(), h);
    depth_.push(std::numeric_limits<double>::quiet_NaN());
    ++forms_[read_depth(p, name_end, end)];
    static const char kCircular[] = "circular=yes";
    const u8* word = name_end;
    while ((word = std::search(word, end, kCircular, kCircular + 12)) != end &&
           !(is_blank(word[-1]) && (word + 12 == end || is_blank(word[12])))) {
      word += 12;
    }
    if (word != end) circles_.push(records() - 1);
  }

  // Takes `text` as the depth of the record; false if it is not a number at all.
  bool take_depth(const u8* begin, const u8* end) {
    if (parse_depth(begin, end, &depth_[depth_.size() - 1])) return true;
    double value;
    const char* first = reinterpret_cast<const char*>(begin);
    const char* last = reinterpret_cast<const char*>(end);
    const auto [stop, problem] = std::from_chars(first, last, value);
    if (stop != last || problem == std::errc::invalid_argument) return false;
    throw ParseError(record() + " has the depth " + shown(begin, end - begin) +
                     "; it must be finite and not negative: correct the header");
  }

  DepthForm read_depth(const u8* name, const u8* name_end, const u8* end) {
    const bool of_metahipmer =
        begins_with(name, name_end, "Contig") || begins_with(name, name_end, "scaffold_");
    const u8* p = name_end;
    bool second = true, after_depth = false;
    for (;; second = false) {
      while (p < end && is_blank(*p)) ++p;
      if (p == end) break;
      const u8* word = p;
      while (p < end && !is_blank(*p)) ++p;
      if (begins_with(word, p, "multi=")) {
        if (take_depth(word + 6, p)) return kMegahit;
      } else if (begins_with(word, p, "depth=") || begins_with(word, p, "depth_")) {
        if (take_depth(word + 6, p)) return kMetaHipMer;
      } else if (after_depth || (of_metahipmer && second && p == end)) {
        if (take_depth(word, p)) return kMetaHipMer;
      }
      after_depth = p - word == 5 && begins_with(word, p, "depth");
    }
    // the id last: where an earlier run kept it, its own tag says more
    static const char kCov[] = "_cov_";
    const u8* cov = std::find_end(name, name_end, kCov, kCov + 5);
    if (cov != name_end) {
      const u8* number = cov + 5;
      if (take_depth(number, std::find(number, name_end, '_'))) return kSpades;
    }
    return kNoDepth;
  }

  Growing<u8> bases_, names_;
  Growing<std::int64_t> offsets_, name_offsets_, circles_;
  Growing<double> depth_;
  NameIndex index_;
  std::vector<u8> header_;
  bool line_start_ = true, line_empty_ = true, in_header_ = false, carriage_return_ = false;
  BaseTally tally_;
  i64 crlf_ = 0, blank_ = 0, forms_[kDepthForms] = {};
};

// Depths of the contigs from the rows of a tab-separated table; NaN where there is no row. Gives
// the depths and the number of rows of other contigs.
nb::tuple table_depths(In<u8> text, In<u8> name_values, In<std::int64_t> name_offsets,
                       i64 name_column, i64 depth_column, i64 first_line) {
  const std::size_t n = name_offsets.shape(0) - 1;
  Growing<double> depth(n);
  i64 extra = 0;
  {
    const nb::gil_scoped_release release;
    NameIndex index;
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t* offset = name_offsets.data() + i;
      index.add(name_values.data(), name_offsets.data(),
                NameIndex::hash(name_values.data() + offset[0], offset[1] - offset[0]));
    }
    std::fill(depth.data(), depth.data() + n, std::numeric_limits<double>::quiet_NaN());
    std::vector<i64> row_of(n, 0);
    const u8* p = text.data();
    const u8* const end = p + text.shape(0);
    for (i64 line = first_line; p < end; ++line) {
      const u8* stop = find(p, end, '\n');
      const u8* const next = stop ? stop + 1 : end;
      if (!stop) stop = end;
      if (stop > p && stop[-1] == '\r') --stop;
      if (stop == p) {
        p = next;
        continue;
      }
      const std::string here = "line " + std::to_string(line);
      const u8 *name = nullptr, *name_end = nullptr, *value = nullptr, *value_end = nullptr;
      for (i64 column = 0;; ++column) {
        const u8* tab = find(p, stop, '\t');
        const u8* const field_end = tab ? tab : stop;
        if (column == name_column) name = p, name_end = field_end;
        if (column == depth_column) value = p, value_end = field_end;
        if (!tab) break;
        p = tab + 1;
      }
      p = next;
      if (!name || !value) {
        throw ParseError(here + " has fewer columns than the header; make the table again");
      }
      const i64 i = index.find(name_values.data(), name_offsets.data(), name, name_end - name,
                               NameIndex::hash(name, name_end - name));
      if (i < 0) {
        ++extra;
        continue;
      }
      if (row_of[i]) {
        throw ParseError(here + ": contig " + shown(name, name_end - name) +
                         " has a row already, " + "in line " + std::to_string(row_of[i]) +
                         "; remove one of them");
      }
      row_of[i] = line;
      if (!parse_depth(value, value_end, &depth[i])) {
        throw ParseError(here + ": contig " + shown(name, name_end - name) + " has the depth '" +
                         shown(value, value_end - value) +
                         "'; it must be a finite number, not negative: make the table again");
      }
    }
  }
  return nb::make_tuple(depth.give(), extra);
}

// ---- reads ------------------------------------------------------------------------------------

// FASTQ or FASTA of reads, told by the first character.
class ReadParser {
 public:
  ReadParser(int phred_offset, i64 short_length)
      : phred_offset_(phred_offset), short_length_(short_length) {}

  // Parses records of text[begin, end) into the rows of the arrays from `row` on until the rows or
  // the whole records are used up. Lines of a wrapped FASTA record are moved together in `text`.
  // Gives the place where the next record begins and the number of rows filled so far.
  std::tuple<i64, i64> parse(InOut<u8> text, i64 begin, i64 end, bool final,
                             InOut<std::int64_t> base_start, InOut<std::int64_t> quality_start,
                             InOut<i32> length, InOut<std::int64_t> name_start,
                             InOut<i32> name_length, i64 row) {
    const i64 rows = static_cast<i64>(base_start.shape(0));
    require(0 <= begin && begin <= end && end <= static_cast<i64>(text.shape(0)) && row >= 0 &&
                static_cast<i64>(quality_start.shape(0)) == rows &&
                static_cast<i64>(length.shape(0)) == rows &&
                static_cast<i64>(name_start.shape(0)) == rows &&
                static_cast<i64>(name_length.shape(0)) == rows,
            "parse: arrays of different lengths");
    const nb::gil_scoped_release release;
    text_ = text.data();
    end_ = text_ + end;
    u8* p = text_ + begin;
    const i64 before = row;
    last_ = nullptr;
    while (row < rows) {
      if (!skip_blank_lines(&p, final)) break;
      if (format_ == 0) {
        if (*p != '@' && *p != '>') {
          throw ParseError("neither FASTQ nor FASTA: it begins with " + shown_character(*p) +
                           ", not with '@' or '>'; give reads as FASTQ or FASTA (alignments "
                           "belong to --bam or --paf)");
        }
        format_ = *p;
      }
      Record record;
      u8* next = format_ == '@' ? read_fastq(p, final, &record) : read_fasta(p, final, &record);
      if (!next) break;
      p = next;
      last_ = record.name;
      last_length_ = record.name_length;
      ++records_;
      base_start.data()[row] = record.base - text_;
      quality_start.data()[row] = record.quality ? record.quality - text_ : -1;
      length.data()[row] = record.length;
      name_start.data()[row] = record.name - text_;
      name_length.data()[row] = record.name_length;
      ++row;
    }
    if (row > before) {
      last_name_ = shown(text_ + name_start.data()[row - 1], name_length.data()[row - 1]);
    }
    return {p - text_, row};
  }

  i64 records() const { return records_; }
  const std::string& last_name() const { return last_name_; }
  int lowest_quality() const { return quality_range_.low; }
  int highest_quality() const { return quality_range_.high; }
  i64 qualities() const { return qualities_; }

  nb::dict take_counts() {
    nb::dict counts;
    counts["reads"] = std::exchange(reads_, 0);
    counts["bases"] = std::exchange(bases_, 0);
    counts["empty"] = std::exchange(empty_, 0);
    counts["short"] = std::exchange(short_, 0);
    counts["with_n"] = std::exchange(with_n_, 0);
    counts["with_iupac"] = std::exchange(with_iupac_, 0);
    counts["lower_case"] = std::exchange(lower_case_, 0);
    counts["crlf"] = std::exchange(crlf_, 0);
    counts["blank_lines"] = std::exchange(blank_, 0);
    return counts;
  }

 private:
  struct Record {
    u8 *base = nullptr, *quality = nullptr, *name = nullptr;
    i32 length = 0, name_length = 0;
  };

  [[noreturn]] void fail(const u8* name, i64 name_length, const std::string& what) const {
    throw ParseError("record " + std::to_string(records_ + 1) + " (" + shown(name, name_length) +
                     ") " + what);
  }

  [[noreturn]] void cut_short() const {
    std::string last = records_ ? "; the last whole record is number " + std::to_string(records_) +
                                      last_whole_name()
                                : "";
    throw ParseError("record " + std::to_string(records_ + 1) +
                     " is cut short by the end of the file" + last +
                     "; the file is incomplete, get it again");
  }

  std::string last_whole_name() const {
    if (last_) return " (" + shown(last_, last_length_) + ")";
    return last_name_.empty() ? "" : " (" + last_name_ + ")";
  }

  // Steps over blank lines, which may stand at the end of the file and anywhere between records of
  // FASTA. Whether there is more.
  bool skip_blank_lines(u8** at, bool final) {
    u8*& p = *at;
    while (p < end_ && (*p == '\n' || *p == '\r')) {
      if (*p == '\r' && p + 1 == end_ && !final) return false;
      p += *p == '\r' && p + 1 < end_ && p[1] == '\n' ? 2 : 1;
      ++blank_;
      after_blank_ = true;
    }
    if (p < end_ && after_blank_ && (format_ == '@' || *p == '@')) {
      throw ParseError("a blank line stands before record " + std::to_string(records_ + 1) +
                       "; remove the blank lines between records");
    }
    return p < end_;
  }

  // The end of a line without its carriage return.
  u8* trim(u8* line, u8* stop) {
    if (stop == line || stop[-1] != '\r') return stop;
    had_carriage_return_ = true;
    return stop - 1;
  }

  u8* newline(u8* p) const { return const_cast<u8*>(find(p, end_, '\n')); }

  void set_name(u8* header, u8* stop, Record* record) const {
    u8* p = header + 1;
    while (p < stop && !is_blank(*p)) ++p;
    record->name = header + 1;
    const i64 length = p - record->name;
    if (!length) {
      throw ParseError("record " + std::to_string(records_ + 1) +
                       " has no name; give every read one");
    }
    if (length > std::numeric_limits<i32>::max()) fail(header + 1, 80, "has a name of 2 GiB");
    record->name_length = static_cast<i32>(length);
  }

  void count_bases(const Record& record, i64 length) {
    if (length > std::numeric_limits<i32>::max()) {
      fail(record.name, record.name_length, "is longer than 2^31 - 1 bases");
    }
    BaseTally tally;
    i64 at = tally.add(record.base, length);
    if (at < 0 && tally.gap) at = find(record.base, record.base + length, '-') - record.base;
    if (at >= 0) {
      fail(record.name, record.name_length,
           "holds " + shown_character(record.base[at]) +
               " in its sequence; only the letters of nucleotides may stand there, so get the "
               "file again or remove the read");
    }
    ++reads_;
    bases_ += length;
    empty_ += length == 0;
    short_ += length < short_length_;
    with_n_ += tally.unknown != 0;
    with_iupac_ += tally.ambiguous != 0;
    lower_case_ += tally.lower != 0;
    crlf_ += had_carriage_return_;
  }

  // Reads one record; gives where the next one begins, or null if this one is not whole yet.
  u8* read_fastq(u8* p, bool final, Record* record) {
    if (*p != '@') {
      throw ParseError("record " + std::to_string(records_ + 1) + " begins with " +
                       shown_character(*p) + ", not with '@'" +
                       (records_ ? "; the last whole record is number " + std::to_string(records_) +
                                       last_whole_name()
                                 : "") +
                       "; the file is damaged or holds other records, get it again");
    }
    had_carriage_return_ = false;
    u8* const header_end = newline(p);
    if (!header_end) return final ? (cut_short(), nullptr) : nullptr;
    u8* const bases = header_end + 1;
    u8* const bases_end = newline(bases);
    if (!bases_end) return final ? (cut_short(), nullptr) : nullptr;
    u8* const plus = bases_end + 1;
    if (plus < end_ && *plus != '+') {
      set_name(p, trim(p, header_end), record);
      fail(record->name, record->name_length,
           "is not a FASTQ record of four lines: its third line begins with " +
               shown_character(*plus) +
               ", not with '+'; sequences wrapped over several lines must be joined first (e.g. "
               "seqtk seq -l 0)");
    }
    u8* const plus_end = plus < end_ ? newline(plus) : nullptr;
    if (!plus_end) return final ? (cut_short(), nullptr) : nullptr;
    u8* const quality = plus_end + 1;
    u8* quality_end = newline(quality);
    if (!quality_end && !final) return nullptr;
    const bool terminated = quality_end != nullptr;
    if (!terminated) quality_end = end_;
    u8* const next = terminated ? quality_end + 1 : end_;

    set_name(p, trim(p, header_end), record);
    record->base = bases;
    record->quality = quality;
    const i64 length = trim(bases, bases_end) - bases;
    const i64 quality_length = trim(quality, quality_end) - quality;
    Range range;
    range.add(quality, quality_length);
    if (quality_length && (range.low < phred_offset_ || range.high > kHighestQuality)) {
      const i64 at = first_outside(quality, quality_length, phred_offset_, kHighestQuality);
      fail(record->name, record->name_length, bad_quality(quality[at], phred_offset_));
    }
    if (length != quality_length) {
      if (!terminated && quality_length < length) cut_short();
      fail(record->name, record->name_length,
           "has " + std::to_string(length) + " bases but " + std::to_string(quality_length) +
               " qualities; the file is damaged, get it again or remove the read");
    }
    count_bases(*record, length);
    record->length = static_cast<i32>(length);
    quality_range_.low = std::min(quality_range_.low, range.low);
    quality_range_.high = std::max(quality_range_.high, range.high);
    qualities_ += quality_length;
    return next;
  }

  u8* read_fasta(u8* p, bool final, Record* record) {
    if (*p != '>') {
      throw ParseError("record " + std::to_string(records_ + 1) + " begins with " +
                       shown_character(*p) +
                       ", not with '>'; a file is either FASTA or FASTQ, so divide it");
    }
    had_carriage_return_ = false;
    u8* header_end = newline(p);
    if (!header_end && !final) return nullptr;
    u8* const bases = header_end ? header_end + 1 : end_;
    u8* next = bases;  // after the lines of the sequence
    while (next < end_ && *next != '>') {
      u8* const stop = newline(next);
      if (!stop && !final) return nullptr;
      next = stop ? stop + 1 : end_;
    }
    if (next == end_ && !final) return nullptr;

    set_name(p, trim(p, header_end ? header_end : end_), record);
    record->base = bases;
    u8* to = bases;
    i64 empty_lines = 0;
    for (u8* line = bases; line < next;) {
      u8* const stop = newline(line);
      u8* const line_end = trim(line, stop ? stop : end_);
      if (line_end > line) {
        if (to != line) std::memmove(to, line, static_cast<std::size_t>(line_end - line));
        to += line_end - line;
      } else {
        ++empty_lines;
      }
      line = stop ? stop + 1 : end_;
    }
    // one empty line is how a read without bases is written
    blank_ += to == bases && empty_lines ? empty_lines - 1 : empty_lines;
    count_bases(*record, to - bases);
    record->length = static_cast<i32>(to - bases);
    return next;
  }

  const int phred_offset_;
  const i64 short_length_;
  u8 format_ = 0;  // '@' FASTQ, '>' FASTA, 0 not known yet
  u8 *text_ = nullptr, *end_ = nullptr;
  const u8* last_ = nullptr;  // name of the last whole record, in the text under way
  i64 last_length_ = 0;
  std::string last_name_;  // the same, before this text
  bool after_blank_ = false, had_carriage_return_ = false;
  Range quality_range_;
  i64 records_ = 0, qualities_ = 0;
  i64 reads_ = 0, bases_ = 0, empty_ = 0, short_ = 0, with_n_ = 0, with_iupac_ = 0, lower_case_ = 0,
      crlf_ = 0, blank_ = 0;
};

// Bytes of the mate suffix that `a` and `b` end with (/1 and /2, _1 and _2, .1 and .2), 0 if they
// are the same without one, -1 if they are not of one pair.
i32 mate_suffix(const u8* a, i64 a_length, const u8* b, i64 b_length) {
  if (a_length != b_length) return -1;
  const std::size_t n = static_cast<std::size_t>(a_length);
  if (!std::memcmp(a, b, n)) return 0;
  if (n < 2 || a[n - 1] != '1' || b[n - 1] != '2') return -1;
  const u8 mark = a[n - 2];
  if (mark != '/' && mark != '_' && mark != '.') return -1;
  return std::memcmp(a, b, n - 1) ? -1 : 2;
}

// Compares the names of rows 2i and 2i + 1 and fills their mate suffixes. Gives the first pair
// whose names differ, or -1.
i64 match_mates(In<u8> text, In<std::int64_t> name_start, In<i32> name_length,
                InOut<i32> mate_suffix_length) {
  const i64 rows = static_cast<i64>(name_start.shape(0)), size = static_cast<i64>(text.shape(0));
  require(rows % 2 == 0 && static_cast<i64>(name_length.shape(0)) == rows &&
              static_cast<i64>(mate_suffix_length.shape(0)) == rows,
          "match_mates: arrays of different lengths");
  const nb::gil_scoped_release release;
  for (i64 i = 0; i < rows; ++i) {
    const i64 start = name_start.data()[i], length = name_length.data()[i];
    require(start >= 0 && length >= 0 && start + length <= size,
            "match_mates: a name lies outside the text");
  }
  for (i64 i = 0; i < rows; i += 2) {
    const i32 suffix =
        mate_suffix(text.data() + name_start.data()[i], name_length.data()[i],
                    text.data() + name_start.data()[i + 1], name_length.data()[i + 1]);
    if (suffix < 0) return i / 2;
    mate_suffix_length.data()[i] = mate_suffix_length.data()[i + 1] = suffix;
  }
  return -1;
}

// ---- candidate dumps --------------------------------------------------------------------------

// MetaHipMer2 candidate dump, a text of whole and part lines at a time.
class DumpParser {
 public:
  // `low` and `high`: qualities from which a base votes, and votes as a high one.
  DumpParser(int phred_offset, int low, int high)
      : phred_offset_(phred_offset),
        limits_{static_cast<u32>(phred_offset + low), static_cast<u32>(phred_offset + high)} {
    name_offsets_.push(0);
  }

  // Parses the whole lines of text[0, size). Gives the bytes used up, then the arrays of the
  // contigs, then those of their candidates; ends are numbered over the whole file.
  nb::tuple parse(In<u8> text, i64 size, bool final, int threads) {
    require(0 <= size && size <= static_cast<i64>(text.shape(0)), "parse: size outside the text");
    Arrays out;
    i64 used;
    {
      const nb::gil_scoped_release release;
      used = parse_lines(text.data(), size, final, threads, &out);
    }
    return nb::make_tuple(used, out.bases.give(), out.offsets.give(), out.names.give(),
                          out.name_offsets.give(), out.depth.give(), out.end.give(),
                          out.length.give(), out.has_n.give(), out.word_offset.give(),
                          out.words.give(), out.tally.lower, out.tally.unknown,
                          out.tally.ambiguous + out.tally.gap);
  }

  i64 contigs() const { return contigs_; }
  i64 lines() const { return lines_; }

 private:
  static constexpr i64 kLinesAtOnce = 32;

  struct Arrays {
    Growing<u8> bases, names, has_n;
    Growing<std::int64_t> offsets, name_offsets, end, word_offset;
    Growing<double> depth;
    Growing<i32> length;
    Growing<u32> words;
    BaseTally tally;
  };

  struct Line {
    const u8 *begin, *end;
    i64 number;
  };

  struct Span {
    const u8* begin = nullptr;
    const u8* end = nullptr;
    i64 size() const { return end - begin; }
  };

  struct Contig {
    Span name, bases;
    u64 name_hash;
    double depth;
    i64 left, right;
  };

  struct Read {
    const u8 *base, *quality;
    i32 length;
  };

  struct Problem {
    i64 line = std::numeric_limits<i64>::max();
    std::string what;
    void replace_if_earlier(const Problem& other) {
      if (other.line < line) *this = other;
    }
  };

  // The lines that a thread takes at a time, and what was found there.
  struct Block {
    std::vector<Contig> contigs;
    std::vector<Read> reads;
    i64 words = 0;
    BaseTally tally;
    Problem problem;
    // where the block's part of each array begins
    i64 base_at = 0, name_at = 0, read_at = 0, word_at = 0;
  };

  // One line's fields.
  struct Fields {
    const u8* p;
    const u8* end;
    bool next(Span* field) {
      while (p < end && is_blank(*p)) ++p;
      if (p == end) return false;
      field->begin = p;
      p = find_space(p, end);
      field->end = p;
      if (p < end && !is_blank(*p)) {
        throw ParseError("holds the control character " + shown_character(*p) +
                         "; the dump is damaged, make it again");
      }
      return true;
    }
  };

  // Of several faults the one of the first line is told, however the file is cut into texts.
  i64 parse_lines(const u8* text, i64 size, bool final, int threads, Arrays* out) {
    std::vector<Line> lines;
    Problem last;
    const i64 used = split(text, text + size, final, &lines, &last);
    const i64 n = static_cast<i64>(lines.size());
    std::vector<Block> blocks(static_cast<std::size_t>((n + kLinesAtOnce - 1) / kLinesAtOnce));
    parallel_blocks(n, kLinesAtOnce, threads, [&](int, i64 begin, i64 end) {
      Block& block = blocks[begin / kLinesAtOnce];
      for (i64 i = begin; i < end; ++i) {
        try {
          parse_line(lines[i], &block);
        } catch (const ParseError& error) {
          block.problem = {lines[i].number, error.what()};
          return;
        }
      }
    });
    for (std::size_t b = 0; b < blocks.size(); ++b) {  // only the lines before it matter now
      if (!blocks[b].problem.what.empty()) blocks.resize(b + 1);
    }
    allocate(&blocks, n, out);
    parallel_blocks(static_cast<i64>(blocks.size()), 1, threads, [&](int, i64 b, i64) {
      fill(lines.data() + b * kLinesAtOnce, b * kLinesAtOnce, &blocks[b], out);
    });
    Problem first = remember_names(blocks, lines);
    for (const Block& block : blocks) first.replace_if_earlier(block.problem);
    first.replace_if_earlier(last);
    if (!first.what.empty()) {
      throw ParseError("line " + std::to_string(first.line) + " " + first.what);
    }
    for (const Block& block : blocks) {
      out->tally.lower += block.tally.lower;
      out->tally.unknown += block.tally.unknown;
      out->tally.ambiguous += block.tally.ambiguous;
      out->tally.gap += block.tally.gap;
    }
    contigs_ += n;
    return used;
  }

  // Finds the whole lines up to one that comes after a blank one, which is a problem.
  i64 split(const u8* const text, const u8* const end, bool final, std::vector<Line>* lines,
            Problem* problem) {
    const u8* p = text;
    while (p < end) {
      const u8* const newline = find(p, end, '\n');
      if (!newline && !final) break;
      const u8* stop = newline ? newline : end;
      const u8* const next = newline ? newline + 1 : end;
      if (stop > p && stop[-1] == '\r') --stop;
      ++lines_;
      if (stop == p) {
        after_blank_ = true;
      } else {
        if (after_blank_) {
          *problem = {lines_, "comes after a blank line; remove blank lines between contigs"};
          break;
        }
        lines->push_back({p, stop, lines_});
      }
      p = next;
    }
    return p - text;
  }

  void parse_line(const Line& line, Block* block) const {
    Fields fields{line.begin, line.end};
    Contig contig{};
    Span depth, left, right;
    if (!fields.next(&contig.name)) throw ParseError("holds blanks only; remove it");
    try {
      if (!fields.next(&contig.bases) || !fields.next(&depth) || !fields.next(&left) ||
          !fields.next(&right)) {
        throw ParseError(
            "ends too early; a line is: id sequence depth n_left n_right, then read_id bases "
            "qualities for each read: make the dump again");
      }
      if (!parse_depth(depth.begin, depth.end, &contig.depth)) {
        throw ParseError("has the depth " + shown(depth.begin, depth.size()) +
                         "; it must be a finite number, not negative: make the dump again");
      }
      if (!parse_count(left.begin, left.end, &contig.left) ||
          !parse_count(right.begin, right.end, &contig.right)) {
        throw ParseError("promises " + shown(left.begin, left.size()) + " left and " +
                         shown(right.begin, right.size()) +
                         " right reads; these must be whole numbers: make the dump again");
      }
      for (i64 i = 0; i < contig.left; ++i) parse_read(&fields, contig, i, true, block);
      for (i64 i = 0; i < contig.right; ++i) parse_read(&fields, contig, i, false, block);
      Span more;
      if (fields.next(&more)) {
        throw ParseError("promises " + promised(contig) + " but goes on with '" +
                         shown(more.begin, more.size()) +
                         "' after them; every read has a name, bases and qualities: make the dump "
                         "again");
      }
    } catch (const ParseError& error) {
      throw ParseError("(contig " + shown(contig.name.begin, contig.name.size()) + ") " +
                       error.what());
    }
    contig.name_hash = NameIndex::hash(contig.name.begin, contig.name.size());
    block->contigs.push_back(contig);
  }

  static std::string promised(const Contig& contig) {
    return std::to_string(contig.left) + " left and " + std::to_string(contig.right) +
           " right reads";
  }

  void parse_read(Fields* fields, const Contig& contig, i64 i, bool is_left, Block* block) const {
    Span name, bases;
    if (!fields->next(&name) || !fields->next(&bases)) {
      const i64 whole = is_left ? i : contig.left + i;
      throw ParseError("promises " + promised(contig) + " but ends after " + std::to_string(whole) +
                       " whole reads (" + std::to_string(is_left ? i : contig.left) + " left, " +
                       std::to_string(is_left ? 0 : i) +
                       " right); the dump is damaged or was cut, make it again");
    }
    const i64 length = bases.size();
    while (fields->p < fields->end && is_blank(*fields->p)) ++fields->p;
    const u8* const quality = fields->p;
    Range range;
    if (fields->end - quality >= length) range.add(quality, length);
    const u8* const stop = quality + std::min<i64>(length, fields->end - quality);
    if (fields->end - quality < length || range.low < phred_offset_ ||
        range.high > kHighestQuality || (stop < fields->end && !is_blank(*stop))) {
      bad_read(fields, name, length);
    }
    if (length > std::numeric_limits<i32>::max()) {
      throw ParseError("holds a read of more than 2^31 - 1 bases");
    }
    fields->p = stop;
    block->reads.push_back({bases.begin, quality, static_cast<i32>(length)});
    block->words += 2 * base_words(length);
  }

  [[noreturn]] void bad_read(Fields* fields, const Span& name, i64 length) const {
    const std::string read = "read " + shown(name.begin, name.size());
    Span quality;
    if (!fields->next(&quality)) {
      throw ParseError(read + " has no qualities; the line is cut short, make the dump again");
    }
    const i64 at = first_outside(quality.begin, quality.size(), phred_offset_, kHighestQuality);
    if (at >= 0) throw ParseError(read + " " + bad_quality(quality.begin[at], phred_offset_));
    throw ParseError(read + " has " + std::to_string(length) + " bases but " +
                     std::to_string(quality.size()) +
                     " qualities; an empty read or one of unequal lengths is not allowed: make "
                     "the dump again");
  }

  // Keeps the ids of the whole file; gives the first that is used twice.
  Problem remember_names(const std::vector<Block>& blocks, const std::vector<Line>& lines) {
    std::size_t i = 0;
    for (const Block& block : blocks) {
      for (const Contig& contig : block.contigs) index_.prefetch(contig.name_hash);
      for (const Contig& contig : block.contigs) {
        const i64 number = lines[i++].number;
        const i64 earlier = index_.find(names_.data(), name_offsets_.data(), contig.name.begin,
                                        contig.name.size(), contig.name_hash);
        if (earlier >= 0) {
          return {number, "has the contig id " + shown(contig.name.begin, contig.name.size()) +
                              " of line " + std::to_string(earlier + 1) + "; ids must differ"};
        }
        names_.append(contig.name.begin, static_cast<std::size_t>(contig.name.size()));
        name_offsets_.push(static_cast<std::int64_t>(names_.size()));
        index_.add(names_.data(), name_offsets_.data(), contig.name_hash);
      }
    }
    return {};
  }

  static void allocate(std::vector<Block>* blocks, i64 contigs, Arrays* out) {
    i64 bases = 0, names = 0, reads = 0, words = 0;
    for (Block& block : *blocks) {
      block.base_at = bases;
      block.name_at = names;
      block.read_at = reads;
      block.word_at = words;
      for (const Contig& contig : block.contigs) {
        bases += contig.bases.size();
        names += contig.name.size();
      }
      reads += static_cast<i64>(block.reads.size());
      words += block.words;
    }
    out->bases.extend(bases);
    out->names.extend(names);
    out->offsets.extend(contigs + 1);
    out->name_offsets.extend(contigs + 1);
    out->depth.extend(contigs);
    out->end.extend(reads);
    out->length.extend(reads);
    out->has_n.extend(reads);
    out->word_offset.extend(reads + 1);
    out->words.extend(words);
    out->offsets[contigs] = bases;
    out->name_offsets[contigs] = names;
    out->word_offset[reads] = words;
  }

  // Copies and packs what one block of lines holds; `first` is the first contig's place in `out`.
  void fill(const Line* lines, i64 first, Block* block, Arrays* out) const {
    i64 base = block->base_at, name = block->name_at, read = block->read_at, word = block->word_at;
    const Read* source = block->reads.data();
    for (std::size_t c = 0; c < block->contigs.size(); ++c) {
      const Contig& contig = block->contigs[c];
      auto fail = [&](const std::string& what) {
        block->problem = {
            lines[c].number,
            "(contig " + shown(contig.name.begin, contig.name.size()) + ") holds " + what};
      };
      const i64 i = first + static_cast<i64>(c);
      out->offsets[i] = base;
      out->name_offsets[i] = name;
      out->depth[i] = contig.depth;
      std::memcpy(out->bases.data() + base, contig.bases.begin, contig.bases.size());
      std::memcpy(out->names.data() + name, contig.name.begin, contig.name.size());
      base += contig.bases.size();
      name += contig.name.size();
      const i64 at = block->tally.add(contig.bases.begin, contig.bases.size());
      if (at >= 0) {
        return fail(shown_character(contig.bases.begin[at]) +
                    " in the contig's sequence; the dump is damaged, make it again");
      }
      for (i64 r = 0; r < contig.left + contig.right; ++r, ++source, ++read) {
        out->end[read] = 2 * (contigs_ + i) + (r >= contig.left);
        out->length[read] = source->length;
        out->word_offset[read] = word;
        out->has_n[read] = pack_read(source->base, source->quality, source->length, false, limits_,
                                     out->words.data() + word);
        word += 2 * base_words(source->length);
        if (!out->has_n[read]) continue;
        BaseTally tally;
        const i64 foreign = tally.add(source->base, source->length);
        if (foreign >= 0) {
          return fail(shown_character(source->base[foreign]) + " in the bases of its read number " +
                      std::to_string(r + 1) + "; the dump is damaged, make it again");
        }
      }
    }
  }

  const int phred_offset_;
  const QualityLimits limits_;
  i64 contigs_ = 0, lines_ = 0;
  bool after_blank_ = false;
  Growing<u8> names_;
  Growing<std::int64_t> name_offsets_;
  NameIndex index_;
};

}  // namespace

NB_MODULE(_parse, m) {
  using namespace nb::literals;
  nb::set_leak_warnings(false);  // a run that failed may hold objects to the end
  m.doc() = "Text to flat arrays; see dlasm.io.fasta, dlasm.io.fastq and dlasm.io.candidates.";
  nb::exception<ParseError>(m, "ParseError", PyExc_ValueError);
  nb::class_<ContigParser>(m, "ContigParser", "FASTA of contigs, block by block.")
      .def(nb::init<>())
      .def("feed", &ContigParser::feed, "block"_a, "Parse the next block of the file.")
      .def("finish", &ContigParser::finish,
           "Give bases, offsets, name values, name offsets, depth, circles, headers by form of "
           "depth, "
           "counts.")
      .def_prop_ro("records", &ContigParser::records);
  m.def("table_depths", &table_depths, "text"_a, "name_values"_a, "name_offsets"_a, "name_column"_a,
        "depth_column"_a, "first_line"_a,
        "Depth of each contig from the rows of a table, and the number of other rows.");
  nb::class_<ReadParser>(m, "ReadParser", "FASTQ or FASTA of reads, text by text.")
      .def(nb::init<int, i64>(), "phred_offset"_a, "short_length"_a)
      .def("parse", &ReadParser::parse, "text"_a, "begin"_a, "end"_a, "final"_a, "base_start"_a,
           "quality_start"_a, "length"_a, "name_start"_a, "name_length"_a, "row"_a,
           "Fill rows from whole records; give where the next record begins and the next row.")
      .def("take_counts", &ReadParser::take_counts, "Counts since the last call.")
      .def_prop_ro("records", &ReadParser::records)
      .def_prop_ro("last_name", &ReadParser::last_name)
      .def_prop_ro("lowest_quality", &ReadParser::lowest_quality)
      .def_prop_ro("highest_quality", &ReadParser::highest_quality)
      .def_prop_ro("qualities", &ReadParser::qualities);
  m.def("match_mates", &match_mates, "text"_a, "name_start"_a, "name_length"_a,
        "mate_suffix_length"_a,
        "Compare the names of mates and fill their suffixes; give the first pair that differs or "
        "-1.");
  nb::class_<DumpParser>(m, "DumpParser", "MetaHipMer2 candidate dump, text by text.")
      .def(nb::init<int, int, int>(), "phred_offset"_a, "low"_a, "high"_a)
      .def("parse", &DumpParser::parse, "text"_a, "size"_a, "final"_a, "threads"_a = 1,
           "Parse whole lines; give bytes used, arrays of contigs, arrays of candidates, counts.")
      .def_prop_ro("contigs", &DumpParser::contigs)
      .def_prop_ro("lines", &DumpParser::lines);
}

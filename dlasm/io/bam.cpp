// Records of BAM to flat arrays: where reads lie, and their bases and qualities.
//
// SAM and CRAM become the same bytes through the htslib inside the `pysam` package, whose extension
// module exports the C functions.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dlasm/kernels/parallel.hpp"
#include "dlasm/numpy_arrays.hpp"
#include "dlasm/paf.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

// ---------------------------------------------------------------- a record (SAM specification 4.2)

constexpr i64 kFixed = 36;  // bytes before the name, the length of the record included

enum Flag : std::uint16_t {
  kPaired = 0x1,
  kUnmapped = 0x4,
  kMateUnmapped = 0x8,
  kReverse = 0x10,
  kMateReverse = 0x20,
  kRead1 = 0x40,
  kRead2 = 0x80,
  kSecondary = 0x100,
  kSupplementary = 0x800
};

enum Operation : u32 {
  kMatch,
  kInsert,
  kDelete,
  kSkip,
  kSoftClip,
  kHardClip,
  kPad,
  kEqual,
  kDiffer
};
constexpr u32 kOperations = 9;

// Whether an operation of CIGAR takes bases of the read, and of the contig.
inline bool takes_read(u32 operation) { return (0x193u >> operation) & 1; }
inline bool takes_contig(u32 operation) { return (0x18Du >> operation) & 1; }

template <class T>
T load(const u8* from) {  // little-endian, as BAM and all hosts of dlasm are
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

class Record {
 public:
  // `at`: its first byte, where its length stands; `size`: all of its bytes.
  Record(const u8* at, i64 size) : at_(at), size_(size) {}

  i32 reference() const { return load<i32>(at_ + 4); }
  i32 position() const { return load<i32>(at_ + 8); }
  i64 name_length() const { return i64{at_[12]} - 1; }  // without the NUL
  u32 operations() const { return load<std::uint16_t>(at_ + 16); }
  u32 flag() const { return load<std::uint16_t>(at_ + 18); }
  i64 bases() const { return load<i32>(at_ + 20); }
  i32 mate_reference() const { return load<i32>(at_ + 24); }
  i32 mate_position() const { return load<i32>(at_ + 28); }
  const u8* name() const { return at_ + kFixed; }
  u32 cigar(u32 i) const { return load<u32>(name() + name_length() + 1 + 4 * i); }
  const u8* packed_bases() const { return name() + name_length() + 1 + 4 * i64{operations()}; }
  const u8* qualities() const { return packed_bases() + (bases() + 1) / 2; }

  // What is wrong with its form, or null.
  const char* problem(i64 references) const {
    if (size_ < kFixed + 1 || name_length() < 0 || bases() < 0 ||
        qualities() - at_ + bases() > size_) {
      return "its fields do not fit its length";
    }
    if (name()[name_length()] != 0) return "its name does not end";
    if (reference() < -1 || reference() >= references) return "it names no reference of the header";
    i64 of_read = 0;
    for (u32 i = 0; i < operations(); ++i) {
      const u32 operation = cigar(i) & 15;
      if (operation >= kOperations) return "its CIGAR has an operation that is not known";
      if (takes_read(operation)) of_read += cigar(i) >> 4;
    }
    if (operations() && bases() && !(flag() & kUnmapped) && of_read != bases()) {
      return "CIGAR and query sequence lengths differ";
    }
    return nullptr;
  }

 private:
  const u8* at_;
  i64 size_;
};

// Must match ROW in bam.py.
struct Row {
  std::uint64_t name;    // hash, the mate in the last two bits: 1 or 2; 0: a single read
  std::int64_t record;   // number of the record in the file, from 0
  i32 contig;            // -1: unmapped
  i32 start, end;        // the part of the contig that is aligned
  i32 left, right;       // clipped bases, contig direction
  std::uint16_t length;  // of the read, hard-clipped bases included; 65535: at least that
  u8 bits;               // kRowPaired and so on
  u8 unused;
};
static_assert(sizeof(Row) == 40, "numpy must see the same row");

enum RowBits : u8 { kRowPaired = 1, kRowReverse = 2, kRowWhole = 4 };

constexpr int kRowLength = 0xFFFF;

Row row_of(const Record& record, std::int64_t number, const i32* contig) {
  const u32 flag = record.flag();
  const NameKey key = name_key(record.name(), record.name_length());
  const bool first = flag & kRead1, second = flag & kRead2;
  const u32 mate = (flag & kPaired) && first != second ? (first ? 1 : 2) : key.mate;
  Row row{};
  row.name = (key.hash & ~std::uint64_t{3}) | mate;
  row.record = number;
  row.contig = -1;
  i64 length = record.bases();
  bool whole = length > 0;
  const u32 operations = record.operations();
  if (operations && !(flag & kUnmapped)) {
    i64 span = 0, hard = 0, of_read = 0, clip[2] = {0, 0};
    bool inside = false;
    for (u32 i = 0; i < operations; ++i) {
      const u32 operation = record.cigar(i) & 15;
      const i64 size = record.cigar(i) >> 4;
      if (takes_read(operation)) of_read += size;
      if (takes_contig(operation)) span += size;
      if (operation == kSoftClip || operation == kHardClip) {
        clip[inside] += size;
        if (operation == kHardClip) hard += size;
      } else {
        inside = true;
      }
    }
    if (!length || hard) {
      length = of_read + hard;
      whole = false;
    }
    // more than 65535 operations stand in a tag, and here as clipped and skipped altogether
    const bool elsewhere =
        operations == 2 && (record.cigar(0) & 15) == kSoftClip && (record.cigar(1) & 15) == kSkip;
    if (record.reference() >= 0 && record.position() >= 0 && !elsewhere) {
      const i64 end = record.position() + std::max<i64>(1, span);
      row.contig = contig[record.reference()];
      row.start = record.position();
      row.end = static_cast<i32>(std::min<i64>(INT_MAX, end));
      row.left = static_cast<i32>(std::min<i64>(INT_MAX, clip[0]));
      row.right = static_cast<i32>(std::min<i64>(INT_MAX, clip[1]));
    }
  }
  row.length = static_cast<std::uint16_t>(std::min<i64>(kRowLength, length));
  row.bits = static_cast<u8>((flag & kPaired ? kRowPaired : 0) |
                             (flag & kReverse ? kRowReverse : 0) | (whole ? kRowWhole : 0));
  return row;
}

// Whether a read may become a candidate, as far as its record tells: it hangs over, or the record
// says that its mate lies near an end of a contig where the read itself does not lie. Not all files
// say that, so this is a hint.
bool may_be_candidate(const Record& record, const Row& row, const i32* contig,
                      const std::int64_t* length, i64 references, double bound) {
  if (!(row.bits & kRowWhole)) return false;
  bool counted = false;
  if (row.contig >= 0) {
    const i64 after = length[row.contig] - row.end;
    if (row.left > row.start || row.right > after) return true;
    counted = std::min(row.left, row.start) <= 1 && std::min<i64>(row.right, after) <= 1;
  }
  const u32 flag = record.flag();
  const i32 mate = record.mate_reference();
  if (!(flag & kPaired) || flag & kMateUnmapped || mate < 0 || mate >= references) return false;
  if (counted && contig[mate] == row.contig) return false;
  const i64 from_end =
      flag & kMateReverse ? record.mate_position() : length[contig[mate]] - record.mate_position();
  return from_end < bound;
}

// ---------------------------------------------------------------- functions on whole records

// Where each whole record begins, and where the last one ends; then whether the following one
// has a length that cannot be.
std::tuple<Out<std::int64_t>, bool> record_offsets(In<u8> text) {
  const i64 size = static_cast<i64>(text.shape(0));
  std::vector<std::int64_t> offsets{0};
  bool malformed = false;
  {
    nb::gil_scoped_release release;
    for (i64 at = 0; at + 4 <= size;) {
      const i64 length = load<i32>(text.data() + at);
      malformed = length < kFixed - 4 + 1;
      if (malformed || at + 4 + length > size) break;
      at += 4 + length;
      offsets.push_back(at);
    }
  }
  return {given(std::move(offsets)), malformed};
}

void require_offsets(const In<u8>& text, const In<std::int64_t>& offsets) {
  const std::size_t n = offsets.shape(0);
  require(
      n >= 1 && offsets.data()[0] >= 0 && offsets.data()[n - 1] <= static_cast<i64>(text.shape(0)),
      "records: offsets outside the text");
  for (std::size_t i = 1; i < n; ++i) {
    require(offsets.data()[i - 1] <= offsets.data()[i], "records: offsets are not ascending");
  }
}

constexpr i64 kRecordBlock = 1024;  // records that a thread takes at a time

// Rows of the primary records, and which records may be candidates; then the first malformed
// record, or -1, and what is wrong with it.
std::tuple<Out<u8>, Out<std::int64_t>, std::int64_t, std::string> record_rows(
    In<u8> text, In<std::int64_t> offsets, std::int64_t first, In<i32> contig,
    In<std::int64_t> contig_length, double bound, int threads) {
  require_offsets(text, offsets);
  for (std::size_t i = 0; i < contig.shape(0); ++i) {
    require(contig.data()[i] >= 0 && contig.data()[i] < static_cast<i64>(contig_length.shape(0)),
            "record_rows: no such contig");
  }
  const i64 records = static_cast<i64>(offsets.shape(0)) - 1;
  const i64 references = static_cast<i64>(contig.shape(0));
  const i64 blocks = (records + kRecordBlock - 1) / kRecordBlock;
  std::vector<u8> rows(records * sizeof(Row));
  std::vector<std::int64_t> kept;
  std::int64_t bad = -1;
  std::string problem;
  {
    nb::gil_scoped_release release;
    std::vector<i64> filled(blocks, 0);
    std::vector<std::vector<std::int64_t>> kept_of(blocks);
    std::vector<std::pair<i64, const char*>> wrong(blocks, {-1, nullptr});
    parallel_blocks(records, kRecordBlock, threads, [&](int, i64 begin, i64 end) {
      const i64 block = begin / kRecordBlock;
      u8* out = rows.data() + begin * sizeof(Row);
      for (i64 i = begin; i < end; ++i) {
        const i64 at = offsets.data()[i];
        const Record record(text.data() + at, offsets.data()[i + 1] - at);
        if (const char* what = record.problem(references)) {
          wrong[block] = {i, what};
          return;
        }
        if (record.flag() & (kSecondary | kSupplementary)) continue;
        const Row row = row_of(record, first + i, contig.data());
        std::memcpy(out + filled[block]++ * sizeof(Row), &row, sizeof(Row));
        if (may_be_candidate(record, row, contig.data(), contig_length.data(), references, bound)) {
          kept_of[block].push_back(i);
        }
      }
    });
    i64 n = 0;
    for (i64 block = 0; block < blocks && bad < 0; ++block) {
      if (wrong[block].second) {
        bad = wrong[block].first;
        problem = wrong[block].second;
      }
      const i64 from = block * kRecordBlock;
      if (n != from) {
        std::memmove(rows.data() + n * sizeof(Row), rows.data() + from * sizeof(Row),
                     filled[block] * sizeof(Row));
      }
      n += filled[block];
      kept.insert(kept.end(), kept_of[block].begin(), kept_of[block].end());
    }
    rows.resize(n * sizeof(Row));
  }
  return {given(std::move(rows)), given(std::move(kept)), bad, problem};
}

// Checks the records of these numbers, and gives them and the bytes they have without tags.
std::vector<std::pair<Record, i64>> chosen_records(const In<u8>& text,
                                                   const In<std::int64_t>& offsets,
                                                   const In<std::int64_t>& index) {
  require_offsets(text, offsets);
  std::vector<std::pair<Record, i64>> chosen;
  for (std::size_t i = 0; i < index.shape(0); ++i) {
    const i64 r = index.data()[i];
    require(r >= 0 && r + 1 < static_cast<i64>(offsets.shape(0)), "records: no such record");
    const u8* at = text.data() + offsets.data()[r];
    const Record record(at, offsets.data()[r + 1] - offsets.data()[r]);
    require(!record.problem(INT_MAX), "records: a malformed record");
    chosen.emplace_back(record, record.qualities() + record.bases() - at);
  }
  return chosen;
}

// Some of the records, without their tags.
Out<u8> copy_records(In<u8> text, In<std::int64_t> offsets, In<std::int64_t> index) {
  const auto chosen = chosen_records(text, offsets, index);
  std::size_t size = 0;
  for (const auto& each : chosen) size += each.second;
  Out<u8> out = empty<u8>(size);
  u8* to = out.data();
  for (const auto& [record, bytes] : chosen) {
    std::memcpy(to, record.name() - kFixed, bytes);
    const i32 length = static_cast<i32>(bytes - 4);
    std::memcpy(to, &length, 4);
    to += bytes;
  }
  return out;
}

// Bases and qualities of some of the records, as text; quality_start is -1 without qualities.
std::tuple<Out<u8>, Out<std::int64_t>, Out<std::int64_t>, Out<i32>> record_bases(
    In<u8> text, In<std::int64_t> offsets, In<std::int64_t> index) {
  const auto chosen = chosen_records(text, offsets, index);
  const std::size_t n = chosen.size();
  std::size_t size = 0;
  for (const auto& each : chosen) size += 2 * static_cast<std::size_t>(each.first.bases());
  Out<u8> out = empty<u8>(size);
  Out<std::int64_t> base_start = empty<std::int64_t>(n), quality_start = empty<std::int64_t>(n);
  Out<i32> length = empty<i32>(n);
  i64 filled = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Record& record = chosen[i].first;
    const i64 bases = record.bases();
    base_start.data()[i] = filled;
    length.data()[i] = static_cast<i32>(bases);
    u8* to = out.data() + filled;
    const u8* from = record.packed_bases();
    for (i64 j = 0; j < bases; ++j) {
      to[j] = "=ACMGRSVTWYHKDBN"[(from[j / 2] >> (j % 2 ? 0 : 4)) & 15];
    }
    filled += bases;
    const bool known = bases && record.qualities()[0] != 0xFF;
    quality_start.data()[i] = known ? filled : -1;
    if (known) std::memcpy(out.data() + filled, record.qualities(), bases);
    if (known) filled += bases;
  }
  return {out, base_start, quality_start, length};
}

// ---------------------------------------------------------------- SAM and CRAM

// The parts of htslib's sam.h that are used; the layout has been the same since htslib 1.10.
struct HtsRecord {  // bam1_t
  std::int64_t pos;
  std::int32_t tid;
  std::uint16_t bin;
  std::uint8_t qual, l_extranul;
  std::uint16_t flag, l_qname;
  std::uint32_t n_cigar;
  std::int32_t l_qseq, mtid;
  std::int64_t mpos, isize;
  std::uint64_t id;
  std::uint8_t* data;
  int l_data;
  std::uint32_t m_data, mempolicy;
};

class HtsReader {
 public:
  // `library`: pysam's extension module; `reference`: FASTA that CRAM needs, or empty.
  HtsReader(const std::string& library, const std::string& path, const std::string& reference,
            int threads) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open, as pysam does
    if (!handle) throw std::runtime_error(std::string("cannot load htslib: ") + dlerror());
    const auto open = find<void* (*)(const char*, const char*)>(handle, "hts_open");
    const auto set_threads = find<int (*)(void*, int)>(handle, "hts_set_threads");
    const auto set_fai = find<int (*)(void*, const char*)>(handle, "hts_set_fai_filename");
    const auto read_header = find<void* (*)(void*)>(handle, "sam_hdr_read");
    const auto new_record = find<HtsRecord* (*)()>(handle, "bam_init1");
    close_ = find<int (*)(void*)>(handle, "hts_close");
    free_header_ = find<void (*)(void*)>(handle, "sam_hdr_destroy");
    free_record_ = find<void (*)(HtsRecord*)>(handle, "bam_destroy1");
    read_ = find<int (*)(void*, void*, HtsRecord*)>(handle, "sam_read1");
    file_ = open(path.c_str(), "r");
    try {
      if (!file_) throw std::runtime_error("it cannot be opened");
      if (threads > 1 && set_threads(file_, threads)) throw std::runtime_error("no threads");
      if (!reference.empty() && set_fai(file_, reference.c_str())) {
        throw std::runtime_error("the contigs cannot be used as its reference");
      }
      header_ = read_header(file_);
      if (!header_) throw std::runtime_error("its header cannot be read");
      record_ = new_record();
      if (!record_) throw std::bad_alloc();
    } catch (...) {
      close();
      throw;
    }
  }
  HtsReader(const HtsReader&) = delete;
  HtsReader& operator=(const HtsReader&) = delete;
  ~HtsReader() { close(); }

  // Closes the file; false if htslib then says that it was damaged.
  bool close() {
    if (record_) free_record_(record_);
    if (header_) free_header_(header_);
    const bool good = !file_ || close_(file_) >= 0;
    record_ = nullptr;
    file_ = header_ = nullptr;
    return good;
  }

  // At least `bytes` of records as BAM has them, fewer at the end; then what is wrong with the next
  // one, or null.
  const char* read(std::size_t bytes, std::vector<u8>* out) {
    static const char kDamaged[] = "the next one cannot be read";
    require(file_, "HtsReader: closed");
    // asked again after the end of a SAM file, older htslib with threads waits for ever (issue
    // 1855)
    while (!ended_ && out->size() < bytes) {
      const int code = read_(file_, header_, record_);
      ended_ = code == -1;
      if (ended_) return nullptr;
      if (code < -1) return kDamaged;
      const HtsRecord& r = *record_;
      if (r.tid < 0 && r.pos >= 0 && r.n_cigar) {  // of which htslib makes an unmapped read
        return "the next one is aligned to a reference that the header does not have";
      }
      const u32 name = u32{r.l_qname} - r.l_extranul;
      const u8* cigar = r.data + r.l_qname;
      const bool too_many = r.n_cigar > 0xFFFF;  // see `elsewhere` in row_of
      const u32 operations = too_many ? 2 : r.n_cigar;
      const u8* rest = cigar + 4 * std::size_t{r.n_cigar};
      const std::size_t rest_size = (static_cast<std::size_t>(r.l_qseq) + 1) / 2 + r.l_qseq;
      const std::size_t at = out->size();
      const std::size_t size = kFixed + name + 4 * std::size_t{operations} + rest_size;
      if (name < 1 || name > 0xFF || r.l_qseq < 0 || r.pos > INT_MAX || size > INT_MAX ||
          rest + rest_size > r.data + r.l_data) {
        return kDamaged;
      }
      out->resize(at + size);
      u8* to = out->data() + at;
      const i32 fields[] = {static_cast<i32>(size - 4),
                            r.tid,
                            static_cast<i32>(r.pos),
                            static_cast<i32>(name | u32{r.qual} << 8 | u32{r.bin} << 16),
                            static_cast<i32>(operations | u32{r.flag} << 16),
                            r.l_qseq,
                            r.mtid,
                            static_cast<i32>(std::min<i64>(r.mpos, INT_MAX)),
                            0};
      static_assert(sizeof(fields) == kFixed, "the fixed part of a record");
      std::memcpy(to, fields, kFixed);
      std::memcpy(to += kFixed, r.data, name);
      to += name;
      if (too_many) {
        const u32 both[] = {static_cast<u32>(r.l_qseq) << 4 | kSoftClip, kSkip};
        std::memcpy(to, both, sizeof(both));
      } else {
        std::memcpy(to, cigar, 4 * std::size_t{operations});
      }
      std::memcpy(to + 4 * std::size_t{operations}, rest, rest_size);
    }
    return nullptr;
  }

 private:
  template <class Function>
  static Function find(void* handle, const char* name) {
    void* symbol = dlsym(handle, name);
    if (!symbol) throw std::runtime_error(std::string(name) + " is not exported");
    Function function;
    std::memcpy(&function, &symbol, sizeof(symbol));
    return function;
  }

  bool ended_ = false;
  void* file_ = nullptr;
  void* header_ = nullptr;
  HtsRecord* record_ = nullptr;
  int (*close_)(void*);
  void (*free_header_)(void*);
  void (*free_record_)(HtsRecord*);
  int (*read_)(void*, void*, HtsRecord*);
};

std::unique_ptr<HtsReader> open_hts(const std::string& library, const std::string& path,
                                    const std::string& reference, int threads) {
  nb::gil_scoped_release release;
  return std::make_unique<HtsReader>(library, path, reference, threads);
}

std::tuple<Out<u8>, std::string> read_hts(HtsReader& reader, std::size_t bytes) {
  std::vector<u8> out;
  const char* problem;
  {
    nb::gil_scoped_release release;
    out.reserve(bytes + bytes / 8);
    problem = reader.read(bytes, &out);
  }
  return {given(std::move(out)), problem ? problem : ""};
}

}  // namespace

NB_MODULE(_bam, m) {
  using namespace nb::literals;
  nb::set_leak_warnings(false);  // a run that failed may hold objects to the end
  m.doc() = "Records of BAM to flat arrays; see dlasm.io.bam.";
  m.def("record_offsets", &record_offsets, "text"_a,
        "Where whole records begin and the last ends; whether the next has an impossible length.");
  m.def("record_rows", &record_rows, "text"_a, "offsets"_a, "first"_a, "contig"_a,
        "contig_length"_a, "bound"_a, "threads"_a,
        "Rows of primary records, which records may be candidates, the first malformed record or "
        "-1, and what is wrong with it.");
  m.def("copy_records", &copy_records, "text"_a, "offsets"_a, "index"_a,
        "Some of the records, without their tags.");
  m.def("record_bases", &record_bases, "text"_a, "offsets"_a, "index"_a,
        "Text of bases and qualities of some records, base_start, quality_start or -1, length.");
  nb::class_<HtsReader>(m, "HtsReader", "Records of a file that htslib reads, as BAM has them.")
      .def(nb::new_(&open_hts), "library"_a, "path"_a, "reference"_a, "threads"_a)
      .def("read", &read_hts, "bytes"_a,
           "The next records, about so many bytes; what is wrong with the one after them, if "
           "anything.")
      .def("close", &HtsReader::close, "Close the file; False if it was damaged.");
}

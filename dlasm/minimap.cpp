// Native parts of recruiting: bulk mapping with minimap2, reading PAF, hashing read names.
//
// minimap2 is the copy inside the `mappy` package, whose extension module exports the C functions.
// Why not mappy's Python class: it does not give the alignment score that the choice of a read's
// place needs, and a Python loop over reads costs as much as the mapping itself.
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

template <class T>
Out<T> copied(const std::vector<T>& values) {
  Out<T> out = empty<T>(values.size());
  if (!values.empty()) std::memcpy(out.data(), values.data(), sizeof(T) * values.size());
  return out;
}

// The parts of minimap.h that are used. Of each structure only the fields up to the last one read
// here; the layout has been the same in minimap2 2.24 to 2.31, and `self_check` looks.
struct Extra {  // mm_extra_t
  std::uint32_t capacity;
  std::int32_t dp_score;  // what minimap2 prints as AS
};

struct Region {  // mm_reg1_t, whole: regions come as an array
  std::int32_t id, cnt, rid, score;
  std::int32_t qs, qe, rs, re;
  std::int32_t parent, subsc, as, mlen, blen, n_sub, score0;
  std::uint32_t mapq : 8, split : 2, rev : 1, others : 21;
  std::uint32_t hash;
  float div;
  Extra* p;
};

struct IndexOptions {  // mm_idxopt_t
  std::int16_t k, w, flag, bucket_bits;
  unsigned char rest[504];
};

struct MapOptions {  // mm_mapopt_t, some 300 bytes
  std::int64_t flag;
  unsigned char rest[4088];
};

struct Index;
struct Buffer;
constexpr std::int64_t kWithCigar = 0x4;  // MM_F_CIGAR: align, not only chain
constexpr int kHomopolymer = 0x1;         // MM_I_HPC

class Minimap {
 public:
  int (*set_opt)(const char*, IndexOptions*, MapOptions*);
  Index* (*idx_str)(int, int, int, int, int, const char**, const char**);
  void (*idx_destroy)(Index*);
  void (*mapopt_update)(MapOptions*, const Index*);
  Buffer* (*tbuf_init)();
  void (*tbuf_destroy)(Buffer*);
  Region* (*map)(const Index*, int, const char*, int*, Buffer*, const MapOptions*, const char*);

  explicit Minimap(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open, as mappy does
    if (!library) throw std::runtime_error(std::string("cannot load minimap2: ") + dlerror());
    find(library, "mm_set_opt", &set_opt);
    find(library, "mm_idx_str", &idx_str);
    find(library, "mm_idx_destroy", &idx_destroy);
    find(library, "mm_mapopt_update", &mapopt_update);
    find(library, "mm_tbuf_init", &tbuf_init);
    find(library, "mm_tbuf_destroy", &tbuf_destroy);
    find(library, "mm_map", &map);
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function* out) {
    void* symbol = dlsym(library, name);
    if (!symbol) throw std::runtime_error(std::string(name) + " is not exported");
    std::memcpy(out, &symbol, sizeof(symbol));
  }
};

struct Place {
  std::int64_t read, contig;
  std::int32_t start, end, left, right, score;
  bool reverse;
};

constexpr i64 kReadBlock = 128;  // reads that a thread takes at a time

class Mapper {
 public:
  // `path`: mappy's extension module. Contigs shorter than minimap2's k are left out.
  Mapper(const std::string& path, const u8* bases, const std::int64_t* offsets, i64 contigs)
      : minimap_(path) {
    alignas(16) IndexOptions index_options;
    std::memset(&index_options, 0, sizeof(index_options));
    std::memset(&options_, 0, sizeof(options_));
    minimap_.set_opt(nullptr, &index_options, &options_);
    if (minimap_.set_opt("sr", &index_options, &options_) != 0 || index_options.k < 1 ||
        index_options.k > 28 || index_options.w < 1) {
      throw std::runtime_error("preset sr is not understood");
    }
    options_.flag |= kWithCigar;
    std::vector<char> text;  // mm_idx_str takes C strings
    std::size_t size = 0;
    for (i64 c = 0; c < contigs; ++c) {
      const i64 length = offsets[c + 1] - offsets[c];
      if (length < index_options.k) continue;
      contig_.push_back(c);
      size += static_cast<std::size_t>(length) + 1;
    }
    if (contig_.empty()) return;
    if (contig_.size() > INT_MAX) throw std::invalid_argument("more than 2^31 - 1 contigs");
    text.resize(size);
    std::vector<const char*> sequence;
    std::size_t at = 0;
    for (const std::int64_t c : contig_) {
      const std::size_t length = static_cast<std::size_t>(offsets[c + 1] - offsets[c]);
      std::memcpy(text.data() + at, bases + offsets[c], length);
      text[at + length] = '\0';
      sequence.push_back(text.data() + at);
      at += length + 1;
    }
    index_ = minimap_.idx_str(index_options.w, index_options.k, index_options.flag & kHomopolymer,
                              index_options.bucket_bits, static_cast<int>(sequence.size()),
                              sequence.data(), nullptr);
    if (!index_) throw std::runtime_error("the index was not built");
    minimap_.mapopt_update(&options_, index_);
  }
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;
  ~Mapper() {
    if (index_) minimap_.idx_destroy(index_);
  }

  // Every place of each read, primary and secondary, in read order whatever the threads. Reads are
  // mapped one by one, without a name, so the result depends on nothing but the bases.
  std::vector<std::vector<Place>> map(const u8* text, const std::int64_t* base_start,
                                      const std::int32_t* length, i64 reads, int threads) const {
    std::vector<std::vector<Place>> blocks((reads + kReadBlock - 1) / kReadBlock);
    if (!index_) return blocks;
    using Released = std::unique_ptr<Buffer, void (*)(Buffer*)>;
    std::vector<Released> buffers;
    for (int t = 0; t < std::max(1, threads); ++t) {
      buffers.emplace_back(minimap_.tbuf_init(), minimap_.tbuf_destroy);
    }
    parallel_blocks(reads, kReadBlock, threads, [&](int thread, i64 begin, i64 end) {
      std::vector<Place>& places = blocks[begin / kReadBlock];
      for (i64 i = begin; i < end; ++i) {
        int count = 0;
        Region* regions =
            minimap_.map(index_, length[i], reinterpret_cast<const char*>(text) + base_start[i],
                         &count, buffers[thread].get(), &options_, nullptr);
        for (int j = 0; j < count; ++j) {
          const Region& r = regions[j];
          if (r.rid < 0 || static_cast<std::size_t>(r.rid) >= contig_.size()) {
            throw std::runtime_error("an alignment to a sequence that is not in the index");
          }
          const std::int32_t after = length[i] - r.qe;
          places.push_back({i, contig_[r.rid], r.rs, r.re, r.rev ? after : r.qs,
                            r.rev ? r.qs : after, r.p ? r.p->dp_score : 0, r.rev != 0});
          std::free(r.p);
        }
        std::free(regions);
      }
    });
    return blocks;
  }

  // Maps reads of known places and compares every field that `map` uses; false if one differs.
  static bool self_check(const std::string& path) {
    constexpr int kLength = 400, kStart = 120, kEnd = 270, kBefore = 10, kAfter = 15, kRead = 175;
    std::string genome(kLength, 'A');
    std::uint32_t state = 20240229;
    for (char& base : genome) {
      state = state * 1664525u + 1013904223u;
      base = "ACGT"[state >> 30];
    }
    // contigs: too short, the genome, the genome again after 50 of its bases reversed
    std::string shifted(genome.rbegin(), genome.rbegin() + 50);
    shifted += genome;
    const std::string bases = "ACGTACGT" + genome + shifted;
    const std::int64_t offsets[] = {0, 8, 8 + kLength, 8 + 2 * kLength + 50};
    const Mapper mapper(path, reinterpret_cast<const u8*>(bases.data()), offsets, 3);

    auto complement = [](char base) {
      return base == 'A' ? 'T' : base == 'C' ? 'G' : base == 'G' ? 'C' : 'A';
    };
    std::string read = genome.substr(kStart - kBefore, kRead);
    for (int i = 0; i < kBefore; ++i) read[i] = complement(read[i]);  // clipped
    for (int i = kRead - kAfter; i < kRead; ++i) read[i] = complement(read[i]);
    read[80] = complement(read[80]);  // a mismatch: 149 * 2 - 8
    std::string other(read.rbegin(), read.rend());
    for (char& base : other) base = complement(base);
    const std::string text = read + other;
    const std::int64_t base_start[] = {0, kRead};
    const std::int32_t length[] = {kRead, kRead};
    const auto blocks =
        mapper.map(reinterpret_cast<const u8*>(text.data()), base_start, length, 2, 1);
    const std::vector<Place>& places = blocks.front();
    if (places.size() != 4) return false;
    bool seen[2][2] = {};
    for (const Place& p : places) {
      if (p.contig != 1 && p.contig != 2) return false;
      const int shift = p.contig == 2 ? 50 : 0;
      if (p.start != kStart + shift || p.end != kEnd + shift || p.left != kBefore ||
          p.right != kAfter || p.score != 290 || p.reverse != (p.read == 1)) {
        return false;
      }
      seen[p.read][p.contig - 1] = true;
    }
    return seen[0][0] && seen[0][1] && seen[1][0] && seen[1][1];
  }

 private:
  Minimap minimap_;
  alignas(16) MapOptions options_;
  Index* index_ = nullptr;
  std::vector<std::int64_t> contig_;  // of each sequence in the index
};

std::unique_ptr<Mapper> make_mapper(const std::string& path, In<u8> bases,
                                    In<std::int64_t> offsets) {
  const i64 contigs = static_cast<i64>(offsets.shape(0)) - 1;
  require(contigs >= 0, "Mapper: no offsets");
  for (i64 c = 0; c < contigs; ++c) {
    require(0 <= offsets.data()[c] && offsets.data()[c] <= offsets.data()[c + 1] &&
                offsets.data()[c + 1] - offsets.data()[c] < INT_MAX,
            "Mapper: offsets are not ascending, or a contig has 2^31 bases");
  }
  require(offsets.data()[contigs] <= static_cast<i64>(bases.shape(0)),
          "Mapper: a contig lies outside the bases");
  nb::gil_scoped_release release;
  return std::make_unique<Mapper>(path, bases.data(), offsets.data(), contigs);
}

using PlaceArrays = std::tuple<Out<std::int64_t>, Out<std::int64_t>, Out<std::int64_t>,
                               Out<std::int64_t>, Out<i32>, Out<i32>, Out<u8>, Out<i32>>;

PlaceArrays place(const Mapper& mapper, In<u8> text, In<std::int64_t> base_start, In<i32> length,
                  int threads) {
  const i64 reads = static_cast<i64>(base_start.shape(0));
  require(static_cast<i64>(length.shape(0)) == reads, "place: arrays of different lengths");
  for (i64 i = 0; i < reads; ++i) {
    require(length.data()[i] >= 0 && base_start.data()[i] >= 0 &&
                base_start.data()[i] + length.data()[i] <= static_cast<i64>(text.shape(0)),
            "place: a read lies outside the text");
  }
  std::vector<std::vector<Place>> blocks;
  {
    nb::gil_scoped_release release;
    blocks = mapper.map(text.data(), base_start.data(), length.data(), reads, threads);
  }
  std::size_t n = 0;
  for (const auto& block : blocks) n += block.size();
  PlaceArrays out{empty<std::int64_t>(n), empty<std::int64_t>(n), empty<std::int64_t>(n),
                  empty<std::int64_t>(n), empty<i32>(n),          empty<i32>(n),
                  empty<u8>(n),           empty<i32>(n)};
  std::size_t at = 0;
  for (const auto& block : blocks) {
    for (const Place& p : block) {
      std::get<0>(out).data()[at] = p.read;
      std::get<1>(out).data()[at] = p.contig;
      std::get<2>(out).data()[at] = p.start;
      std::get<3>(out).data()[at] = p.end;
      std::get<4>(out).data()[at] = p.left;
      std::get<5>(out).data()[at] = p.right;
      std::get<6>(out).data()[at] = p.reverse;
      std::get<7>(out).data()[at] = p.score;
      ++at;
    }
  }
  return out;
}

std::tuple<Out<std::uint64_t>, Out<u8>> hash_names(In<u8> text, In<std::int64_t> start,
                                                   In<i32> length) {
  const std::size_t n = start.shape(0);
  require(length.shape(0) == n, "hash_names: arrays of different lengths");
  Out<std::uint64_t> hash = empty<std::uint64_t>(n);
  Out<u8> mate = empty<u8>(n);
  for (std::size_t i = 0; i < n; ++i) {
    const i64 begin = start.data()[i], size = length.data()[i];
    require(begin >= 0 && size >= 0 && begin + size <= static_cast<i64>(text.shape(0)),
            "hash_names: a name lies outside the text");
    const NameKey key = name_key(text.data() + begin, size);
    hash.data()[i] = key.hash;
    mate.data()[i] = key.mate;
  }
  return {hash, mate};
}

// Columns of a block of whole PAF lines; the first malformed line ends it: then `problem` is not
// empty, and `lines` is the number of whole lines before it.
nb::dict parse_paf(In<u8> text) {
  PafColumns columns;
  {
    nb::gil_scoped_release release;
    columns = read_paf(text.data(), static_cast<i64>(text.shape(0)));
  }
  nb::dict out;
  out["read"] = copied(columns.read);
  out["mate"] = copied(columns.mate);
  out["read_length"] = copied(columns.read_length);
  out["left"] = copied(columns.left);
  out["right"] = copied(columns.right);
  out["reverse"] = copied(columns.reverse);
  out["contig_name_start"] = copied(columns.contig_name_start);
  out["contig_name_length"] = copied(columns.contig_name_length);
  out["contig_length"] = copied(columns.contig_length);
  out["contig_start"] = copied(columns.contig_start);
  out["contig_end"] = copied(columns.contig_end);
  out["matches"] = copied(columns.matches);
  out["score"] = copied(columns.score);
  out["kind"] = copied(columns.kind);
  out["rough"] = copied(columns.rough);
  out["line"] = copied(columns.line);
  out["lines"] = columns.lines;
  out["problem"] = columns.problem;
  return out;
}

}  // namespace

NB_MODULE(_minimap, m) {
  using namespace nb::literals;
  nb::set_leak_warnings(false);  // a run that failed may hold objects to the end
  m.doc() = "Native parts of recruiting; see dlasm.recruit and dlasm.alignments.";
  nb::class_<Mapper>(m, "Mapper", "minimap2's index of the contigs, preset sr.")
      .def(nb::new_(&make_mapper), "library"_a, "bases"_a, "offsets"_a)
      .def("place", &place, "text"_a, "base_start"_a, "length"_a, "threads"_a,
           "All places of the reads: read, contig, start, end, left, right, reverse, score.");
  m.def("self_check", &Mapper::self_check, "library"_a,
        "Whether the minimap2 in this library gives what is expected.");
  m.def("hash_names", &hash_names, "text"_a, "start"_a, "length"_a,
        "64-bit hashes of names without /1 or /2, and which of them was dropped (0: none).");
  m.def("parse_paf", &parse_paf, "text"_a, "Columns of whole lines of PAF.");
}

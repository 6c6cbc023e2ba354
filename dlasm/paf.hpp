// Lines of PAF (minimap2's text format of alignments) to columns, and keys of read names.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "dlasm/kernels/bases.cuh"

namespace dlasm {

struct NameKey {
  std::uint64_t hash;
  u8 mate;  // 1 or 2 where the name ended in /1 or /2
};

// The same name gives the same key in every process. Two of a billion names share one by chance
// with a probability of 3 %.
inline NameKey name_key(const u8* name, i64 length) {
  NameKey key{0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(length), 0};
  if (length >= 2 && name[length - 2] == '/' &&
      (name[length - 1] == '1' || name[length - 1] == '2')) {
    key.mate = static_cast<u8>(name[length - 1] - '0');
    length -= 2;
    key.hash = 0x9E3779B97F4A7C15ull ^ static_cast<std::uint64_t>(length);
  }
  auto mix = [&key](std::uint64_t x) {  // the finaliser of splitmix64
    x ^= key.hash;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    key.hash = x ^ (x >> 31);
  };
  for (i64 i = 0; i < length; i += 8) {
    std::uint64_t x = 0;
    std::memcpy(&x, name + i, static_cast<std::size_t>(length - i < 8 ? length - i : 8));
    mix(x + 0x9E3779B97F4A7C15ull);
  }
  return key;
}

struct PafColumns {
  std::vector<std::uint64_t> read;  // hash of the name
  std::vector<u8> mate, reverse;
  std::vector<i32> read_length, left, right;  // left, right: bases not aligned, contig direction
  std::vector<std::int64_t> contig_name_start;
  std::vector<i32> contig_name_length;
  std::vector<std::int64_t> contig_length, contig_start, contig_end;
  std::vector<i32> matches, score;  // score: tag AS, -2^31 without one
  std::vector<u8> kind;             // tag tp: 'P', 'S', 'I', 'i'; 0 without one
  std::vector<u8> rough;  // 1: minimap2 chained seeds but did not align (tag s1 without AS)
  std::vector<std::int64_t> line;  // number of the line, from 0
  std::int64_t lines = 0;
  std::string problem;
};

constexpr int kPafFields = 12;

// A whole non-negative number, at most 2^62; false if the field is anything else.
inline bool read_number(const u8* begin, const u8* end, std::int64_t* value) {
  if (begin == end || end - begin > 18) return false;
  *value = 0;
  for (; begin < end; ++begin) {
    if (*begin < '0' || *begin > '9') return false;
    *value = *value * 10 + (*begin - '0');
  }
  return true;
}

// A number with an optional sign that fits 32 bits.
inline bool read_score(const u8* begin, const u8* end, i32* value) {
  const bool negative = begin < end && *begin == '-';
  std::int64_t x;
  if (!read_number(begin + negative, end, &x) || x > 0x7FFFFFFF) return false;
  *value = static_cast<i32>(negative ? -x : x);
  return true;
}

// Reads whole lines. Lines without an alignment (contig `*`) and empty lines give no row.
inline PafColumns read_paf(const u8* text, i64 size) {
  PafColumns out;
  const u8* const stop = text + size;
  for (const u8* line = text; line < stop; ++out.lines) {
    const u8* end = static_cast<const u8*>(std::memchr(line, '\n', stop - line));
    const u8* const next = end ? end + 1 : stop;
    if (!end) end = stop;
    if (end > line && end[-1] == '\r') --end;
    const u8* const first = line;
    line = next;
    if (first == end) continue;

    const u8* begin[kPafFields];
    const u8* finish[kPafFields];
    int fields = 0;
    const u8* at = first;
    while (fields < kPafFields && at <= end) {
      const u8* tab = static_cast<const u8*>(std::memchr(at, '\t', end - at));
      begin[fields] = at;
      finish[fields] = tab ? tab : end;
      at = finish[fields++] + 1;
    }
    if (fields < kPafFields) {
      out.problem = "has " + std::to_string(fields) + " of the 12 fields of PAF";
      return out;
    }
    if (begin[0] == finish[0]) {
      out.problem = "has no read name";
      return out;
    }
    if (finish[5] - begin[5] == 1 && *begin[5] == '*') continue;
    static const struct {
      int field;
      const char* name;
    } kNumbers[] = {{1, "read length"},  {2, "read start"}, {3, "read end"}, {6, "target length"},
                    {7, "target start"}, {8, "target end"}, {9, "matches"}};
    std::int64_t n[7];
    for (int i = 0; i < 7; ++i) {
      if (!read_number(begin[kNumbers[i].field], finish[kNumbers[i].field], &n[i])) {
        out.problem = std::string("has a ") + kNumbers[i].name + " that is not a number";
        return out;
      }
    }
    const bool plus = finish[4] - begin[4] == 1 && *begin[4] == '+';
    const bool minus = finish[4] - begin[4] == 1 && *begin[4] == '-';
    if (!plus && !minus) {
      out.problem = "has a strand that is neither + nor -";
      return out;
    }
    if (n[0] > 0x7FFFFFFF || n[1] > n[2] || n[2] > n[0] || n[4] > n[5] || n[5] > n[3] ||
        n[6] > 0x7FFFFFFF) {
      out.problem = "has an alignment that lies outside its read or its target";
      return out;
    }
    i32 score = INT32_MIN;
    u8 kind = 0;
    bool chained = false, aligned = false;
    while (at <= end) {
      const u8* tab = static_cast<const u8*>(std::memchr(at, '\t', end - at));
      const u8* const tag_end = tab ? tab : end;
      if (tag_end - at > 5 && !std::memcmp(at, "AS:i:", 5)) {
        if (!read_score(at + 5, tag_end, &score)) {
          out.problem = "has a tag AS that is not a number";
          return out;
        }
        aligned = true;
      } else if (tag_end - at > 5 && !std::memcmp(at, "s1:i:", 5)) {
        chained = true;
      } else if (tag_end - at == 6 && !std::memcmp(at, "tp:A:", 5)) {
        kind = at[5];
      }
      at = tag_end + 1;
    }
    const NameKey key = name_key(begin[0], finish[0] - begin[0]);
    out.read.push_back(key.hash);
    out.mate.push_back(key.mate);
    out.reverse.push_back(minus);
    out.read_length.push_back(static_cast<i32>(n[0]));
    const i32 before = static_cast<i32>(n[1]), after = static_cast<i32>(n[0] - n[2]);
    out.left.push_back(minus ? after : before);
    out.right.push_back(minus ? before : after);
    out.contig_name_start.push_back(begin[5] - text);
    out.contig_name_length.push_back(static_cast<i32>(finish[5] - begin[5]));
    out.contig_length.push_back(n[3]);
    out.contig_start.push_back(n[4]);
    out.contig_end.push_back(n[5]);
    out.matches.push_back(static_cast<i32>(n[6]));
    out.score.push_back(score);
    out.kind.push_back(kind);
    out.rough.push_back(chained && !aligned);
    out.line.push_back(out.lines);
  }
  return out;
}

}  // namespace dlasm

// Candidate dumps, parsed by one thread and by several from a text that comes in pieces.
#include "dlasm/io/parse.cpp"
#include "fuzz.hpp"

namespace {

using fuzz::Text;

constexpr int kLow = 10, kHigh = 20;

struct Contigs {
  std::vector<u8> bases, names, has_n;
  std::vector<std::int64_t> offsets{0}, name_offsets{0}, end, word_offset{0};
  std::vector<double> depth;
  std::vector<i32> length;
  std::vector<u32> words;
  i64 lower = 0, unknown = 0, other = 0;

  bool operator==(const Contigs& o) const {
    return bases == o.bases && names == o.names && has_n == o.has_n && offsets == o.offsets &&
           name_offsets == o.name_offsets && end == o.end && word_offset == o.word_offset &&
           depth == o.depth && length == o.length && words == o.words && lower == o.lower &&
           unknown == o.unknown && other == o.other;
  }
};

struct Result {
  Text problem;
  Contigs contigs;
};

template <class T>
std::vector<T> values_at(const nb::tuple& given, std::size_t i) {
  return fuzz::values_of(std::any_cast<Out<T>>(given[i]));
}

void append_offsets(std::vector<std::int64_t>* to, const std::vector<std::int64_t>& from) {
  CHECK(!from.empty() && from[0] == 0);
  const std::int64_t shift = to->back();
  for (std::size_t i = 1; i < from.size(); ++i) {
    CHECK(from[i - 1] <= from[i]);
    to->push_back(shift + from[i]);
  }
}

// As `iter_dump` in candidates.py does it.
Result parse(const std::vector<Text>& pieces, int threads, int phred_offset) {
  Result result;
  DumpParser parser(phred_offset, kLow, kHigh);
  Text buffer;
  for (std::size_t next = 0; next <= pieces.size(); ++next) {
    const bool final = next == pieces.size();
    if (!final) buffer += pieces[next];
    fuzz::Exact exact(buffer);
    try {
      const nb::tuple given = parser.parse(In<u8>(exact.data(), {exact.size()}),
                                           static_cast<i64>(exact.size()), final, threads);
      const i64 used = std::any_cast<i64>(given[0]);
      CHECK(0 <= used && used <= static_cast<i64>(buffer.size()));
      if (final) CHECK(used == static_cast<i64>(buffer.size()));
      buffer.erase(0, static_cast<std::size_t>(used));
      CHECK(final || buffer.find('\n') == Text::npos);
      Contigs& all = result.contigs;
      fuzz::append(&all.bases, values_at<u8>(given, 1));
      append_offsets(&all.offsets, values_at<std::int64_t>(given, 2));
      fuzz::append(&all.names, values_at<u8>(given, 3));
      append_offsets(&all.name_offsets, values_at<std::int64_t>(given, 4));
      fuzz::append(&all.depth, values_at<double>(given, 5));
      fuzz::append(&all.end, values_at<std::int64_t>(given, 6));
      fuzz::append(&all.length, values_at<i32>(given, 7));
      fuzz::append(&all.has_n, values_at<u8>(given, 8));
      append_offsets(&all.word_offset, values_at<std::int64_t>(given, 9));
      fuzz::append(&all.words, values_at<u32>(given, 10));
      all.lower += std::any_cast<i64>(given[11]);
      all.unknown += std::any_cast<i64>(given[12]);
      all.other += std::any_cast<i64>(given[13]);
      CHECK(parser.contigs() == static_cast<i64>(all.depth.size()));
    } catch (const ParseError& problem) {
      result.problem = problem.what();
      CHECK(!result.problem.empty());
      break;
    }
  }
  return result;
}

// Adds what a line holds; false if something is wrong with it.
bool add_line(const Text& line, int phred_offset, std::vector<Text>* names, Contigs* out) {
  for (const unsigned char c : line) {
    if (c < ' ' && c != '\t') return false;
  }
  const auto fields = fuzz::split(line, " \t", true);
  i64 reads[2];
  double depth;
  auto bytes = [](const Text& text) { return reinterpret_cast<const u8*>(text.data()); };
  if (fields.size() < 5 ||
      !parse_depth(bytes(fields[2]), bytes(fields[2]) + fields[2].size(), &depth)) {
    return false;
  }
  for (int side = 0; side < 2; ++side) {
    const Text& field = fields[static_cast<std::size_t>(3 + side)];
    if (!parse_count(bytes(field), bytes(field) + field.size(), &reads[side])) return false;
  }
  if (static_cast<i64>(fields.size()) - 5 != 3 * (reads[0] + reads[1])) return false;
  if (!fuzz::only(fields[1], fuzz::kNucleotidesAndGap)) return false;
  if (std::find(names->begin(), names->end(), fields[0]) != names->end()) return false;
  const auto contig = static_cast<std::int64_t>(names->size());
  names->push_back(fields[0]);
  fuzz::append(&out->names, {fields[0].begin(), fields[0].end()});
  fuzz::append(&out->bases, {fields[1].begin(), fields[1].end()});
  out->name_offsets.push_back(static_cast<std::int64_t>(out->names.size()));
  out->offsets.push_back(static_cast<std::int64_t>(out->bases.size()));
  out->depth.push_back(depth);
  out->lower += static_cast<i64>(fuzz::count(fields[1], "acgturyswkmbdhvxn"));
  out->unknown += static_cast<i64>(fuzz::count(fields[1], "Nn."));
  out->other += static_cast<i64>(fuzz::count(fields[1], "URYSWKMBDHVXuryswkmbdhvx-"));
  const QualityLimits limits{static_cast<u32>(phred_offset + kLow),
                             static_cast<u32>(phred_offset + kHigh)};
  for (std::size_t i = 5; i < fields.size(); i += 3) {
    const Text &bases = fields[i + 1], &qualities = fields[i + 2];
    if (bases.size() != qualities.size() || !fuzz::only(bases, fuzz::kNucleotidesAndGap)) {
      return false;
    }
    for (const unsigned char c : qualities) {
      if (c < phred_offset || c > 126) return false;
    }
    const auto length = static_cast<i64>(bases.size());
    std::vector<u32> words(static_cast<std::size_t>(2 * base_words(length)));
    out->has_n.push_back(
        pack_read(bytes(bases), bytes(qualities), length, false, limits, words.data()));
    fuzz::append(&out->words, words);
    out->word_offset.push_back(static_cast<std::int64_t>(out->words.size()));
    out->length.push_back(static_cast<i32>(length));
    out->end.push_back(2 * contig + (static_cast<i64>(i - 5) / 3 >= reads[0]));
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Text text = fuzz::text_of(data, size);
  fuzz::Random random(text);
  const int phred_offset = random.below(4) ? 33 : 64;
  const auto cuttings = fuzz::cuttings_of(text, &random);
  const Result result = parse(cuttings[0], 1, phred_offset);
  for (const auto& pieces : cuttings) {
    const Result again = parse(pieces, 1 + static_cast<int>(random.below(2)), phred_offset);
    CHECK(again.problem == result.problem);
    CHECK(!result.problem.empty() || again.contigs == result.contigs);
  }

  Contigs model;
  std::vector<Text> names;
  i64 number = 0, bad_line = 0;
  bool blank = false;
  for (Text line : fuzz::lines_of(text)) {
    ++number;
    fuzz::trim(&line);
    if (line.empty()) {
      blank = true;
    } else if (blank || !add_line(line, phred_offset, &names, &model)) {
      bad_line = number;
      break;
    }
  }
  if (bad_line) {
    const Text where = "line " + std::to_string(bad_line) + " ";
    CHECK(result.problem.substr(0, where.size()) == where);
  } else {
    CHECK(result.problem.empty());
    CHECK(result.contigs == model);
  }
  return 0;
}

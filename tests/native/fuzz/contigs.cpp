// FASTA of contigs.
#include "dlasm/io/parse.cpp"
#include "fuzz.hpp"

namespace {

using fuzz::Text;

struct Result {
  Text problem;
  i64 records = 0;
  std::vector<u8> bases, names;
  std::vector<std::int64_t> offsets, name_offsets, circles, forms, counts;
  std::vector<std::uint64_t> depth;  // as bits: NaN is NaN

  bool operator==(const Result& o) const {
    return problem == o.problem && records == o.records && bases == o.bases && names == o.names &&
           offsets == o.offsets && name_offsets == o.name_offsets && circles == o.circles &&
           forms == o.forms && counts == o.counts && depth == o.depth;
  }
};

Result parse(const std::vector<Text>& pieces) {
  Result result;
  ContigParser parser;
  try {
    for (const Text& piece : pieces) {
      fuzz::Exact exact(piece);
      parser.feed(In<u8>(exact.data(), {exact.size()}));
    }
    const nb::tuple given = parser.finish();
    result.bases = fuzz::values_of(std::any_cast<Out<u8>>(given[0]));
    result.offsets = fuzz::values_of(std::any_cast<Out<std::int64_t>>(given[1]));
    result.names = fuzz::values_of(std::any_cast<Out<u8>>(given[2]));
    result.name_offsets = fuzz::values_of(std::any_cast<Out<std::int64_t>>(given[3]));
    const auto depth = fuzz::values_of(std::any_cast<Out<double>>(given[4]));
    result.records = static_cast<i64>(depth.size());
    result.depth.resize(depth.size());
    if (!depth.empty()) std::memcpy(result.depth.data(), depth.data(), 8 * depth.size());
    for (const double fold : depth) CHECK(std::isnan(fold) || (std::isfinite(fold) && fold >= 0));
    result.circles = fuzz::values_of(std::any_cast<Out<std::int64_t>>(given[5]));
    for (const auto& form : std::any_cast<nb::tuple>(given[6])) {
      result.forms.push_back(std::any_cast<i64>(form));
    }
    for (const auto& [name, value] : std::any_cast<nb::dict>(given[7])) {
      result.counts.push_back(std::any_cast<i64>(value));
    }
  } catch (const ParseError& problem) {
    result.problem = problem.what();
    CHECK(!result.problem.empty());
    result.records = parser.records();
  }
  return result;
}

struct Model {
  bool valid = true;
  std::vector<Text> names, bases;
  std::vector<std::int64_t> circles;
  std::size_t crlf = 0, blank = 0;
};

Model model_of(const Text& text) {
  Model model;
  for (Text line : fuzz::lines_of(text)) {
    const bool crlf = fuzz::trim(&line);
    if (line.substr(0, 1) == ">") {
      const auto words = fuzz::split(line.substr(1), " \t", true);
      model.valid =
          line.find('\r') == Text::npos && !words.empty() &&
          std::find(model.names.begin(), model.names.end(), words[0]) == model.names.end();
      if (!model.valid) break;
      if (std::find(words.begin() + 1, words.end(), "circular=yes") != words.end()) {
        model.circles.push_back(static_cast<i64>(model.names.size()));
      }
      model.names.push_back(words[0]);
      model.bases.emplace_back();
    } else if (line.empty()) {
      ++model.blank;
    } else {
      model.valid = !model.names.empty() && fuzz::only(line, fuzz::kNucleotidesAndGap);
      if (!model.valid) break;
      model.bases.back() += line;
    }
    model.crlf += crlf;
  }
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Text text = fuzz::text_of(data, size);
  fuzz::Random random(text);
  const auto cuttings = fuzz::cuttings_of(text, &random);
  const Result result = parse(cuttings[0]);
  for (const auto& pieces : cuttings) CHECK(parse(pieces) == result);

  const Model model = model_of(text);
  if (!result.problem.empty()) {
    if (result.problem.find(" has the depth ") == Text::npos) {
      CHECK(!model.valid);
      CHECK(result.records == static_cast<i64>(model.names.size()));
    }
    return 0;
  }
  CHECK(model.valid);
  CHECK(result.records == static_cast<i64>(model.names.size()));
  CHECK(result.offsets.size() == model.names.size() + 1);
  CHECK(result.name_offsets.size() == model.names.size() + 1);
  Text names, bases;
  for (std::size_t i = 0; i < model.names.size(); ++i) {
    CHECK(result.name_offsets[i] == static_cast<i64>(names.size()));
    CHECK(result.offsets[i] == static_cast<i64>(bases.size()));
    names += model.names[i];
    bases += model.bases[i];
  }
  CHECK(result.circles == model.circles);
  CHECK(result.offsets.back() == static_cast<i64>(bases.size()));
  CHECK(fuzz::text_of(result.names.data(), result.names.size()) == names);
  CHECK(fuzz::text_of(result.bases.data(), result.bases.size()) == bases);
  const std::vector<std::size_t> counts = {// by name
                                           model.blank,
                                           model.crlf,
                                           fuzz::count(bases, "-"),
                                           fuzz::count(bases, "URYSWKMBDHVXuryswkmbdhvx"),
                                           fuzz::count(bases, "acgturyswkmbdhvxn"),
                                           fuzz::count(bases, "Nn.")};
  CHECK(std::equal(counts.begin(), counts.end(), result.counts.begin(), result.counts.end()));
  return 0;
}

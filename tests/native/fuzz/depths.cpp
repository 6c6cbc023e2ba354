// Rows of tables of depths.
#include "dlasm/io/parse.cpp"
#include "fuzz.hpp"

namespace {

using fuzz::Text;

const std::vector<Text> kNames = {"k141_0", "k141_1", "a", "", "b c", "\xff\r", "NODE_1_length_5"};

bool to_depth(const Text& text, double* depth) {
  fuzz::Exact exact(text);
  return parse_depth(exact.data(), exact.data() + exact.size(), depth);
}

// Compares with the C library, and the integer part with that of the decimal.
void check_depth(const Text& text) {
  double depth = -1;
  if (!to_depth(text, &depth)) return;
  CHECK(std::isfinite(depth) && depth >= 0 && !std::signbit(depth));
  char* end;
  const double nearest = std::strtod(text.c_str(), &end);
  CHECK(*end == '\0');
  CHECK(depth == nearest + 0.0 || depth == std::nextafter(nearest, 0.0));
  if (!fuzz::only(text, "0123456789.")) return;
  Text integer = text.substr(0, text.find('.'));
  integer.erase(0, integer.find_first_not_of('0'));
  if (integer.size() <= 15) CHECK(std::floor(depth) == std::strtod(integer.c_str(), nullptr));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Text text = fuzz::text_of(data, size);
  fuzz::Random random(text);
  const std::size_t name_column = random.below(4), depth_column = random.below(5);
  check_depth(text);

  // the model
  std::vector<double> depth(kNames.size(), -1);
  i64 extra = 0, bad_line = 0, number = 1;
  for (Text line : fuzz::lines_of(text)) {
    ++number;
    fuzz::trim(&line);
    if (line.empty()) continue;
    const auto fields = fuzz::split(line, "\t", false);
    for (const Text& field : fields) check_depth(field);
    if (fields.size() <= std::max(name_column, depth_column)) {
      bad_line = number;
      break;
    }
    const auto found = std::find(kNames.begin(), kNames.end(), fields[name_column]);
    if (found == kNames.end()) {
      ++extra;
      continue;
    }
    double& of = depth[static_cast<std::size_t>(found - kNames.begin())];
    if (of >= 0 || !to_depth(fields[depth_column], &of)) {
      bad_line = number;
      break;
    }
  }

  Text names;
  std::vector<std::int64_t> offsets{0};
  for (const Text& name : kNames) {
    names += name;
    offsets.push_back(static_cast<std::int64_t>(names.size()));
  }
  fuzz::Exact table(text), name_values(names);
  try {
    const nb::tuple given = table_depths(
        In<u8>(table.data(), {table.size()}), In<u8>(name_values.data(), {name_values.size()}),
        In<std::int64_t>(offsets.data(), {offsets.size()}), static_cast<i64>(name_column),
        static_cast<i64>(depth_column), 2);
    CHECK(!bad_line);
    CHECK(std::any_cast<i64>(given[1]) == extra);
    const auto found = fuzz::values_of(std::any_cast<Out<double>>(given[0]));
    CHECK(found.size() == depth.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(depth[i] < 0 ? std::isnan(found[i]) : found[i] == depth[i]);
    }
  } catch (const ParseError& problem) {
    const Text where = "line " + std::to_string(bad_line);
    CHECK(bad_line && Text(problem.what()).substr(0, where.size()) == where);
  }
  return 0;
}

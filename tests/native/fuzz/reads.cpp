// FASTQ and FASTA of reads, taken some records at a time from a text that comes in pieces.
#include "dlasm/io/parse.cpp"
#include "fuzz.hpp"

namespace {

using fuzz::Text;

constexpr i64 kShort = 22;

struct Read {
  Text name, bases, qualities;
  bool has_qualities;
  bool operator==(const Read& o) const {
    return name == o.name && bases == o.bases && qualities == o.qualities &&
           has_qualities == o.has_qualities;
  }
};

struct Result {
  Text problem;
  std::vector<Read> reads;
  std::map<Text, i64> counts;
  std::vector<i64> qualities;  // lowest, highest, number

  bool operator==(const Result& o) const {
    if (problem != o.problem || !(reads == o.reads)) return false;
    return !problem.empty() || (counts == o.counts && qualities == o.qualities);
  }
};

// Rows that the parser fills.
struct Rows {
  explicit Rows(std::size_t n)
      : base_start(n), quality_start(n), name_start(n), length(n), name_length(n) {}
  std::vector<std::int64_t> base_start, quality_start, name_start;
  std::vector<i32> length, name_length;
};

template <class T>
InOut<T> in_out(std::vector<T>* values) {
  return InOut<T>(values->data(), {values->size()});
}

Text part(const Text& text, i64 begin, i64 length) {
  CHECK(begin >= 0 && length >= 0 && begin + length <= static_cast<i64>(text.size()));
  return text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(length));
}

// As `_ReadFile` in fastq.py does it.
Result parse(const std::vector<Text>& pieces, std::size_t rows_of_take, int phred_offset) {
  Result result;
  ReadParser parser(phred_offset, kShort);
  auto next_piece = pieces.begin();
  Text rest;
  bool final = false;
  for (bool more = true; more;) {
    Text buffer = rest;
    Rows rows(rows_of_take);
    const std::size_t before = result.reads.size();
    i64 used = 0, row = 0;
    auto keep = [&](i64 filled) {
      for (i64 i = 0; i < filled; ++i) {
        Read read{part(buffer, rows.name_start[i], rows.name_length[i]),
                  part(buffer, rows.base_start[i], rows.length[i]), "", rows.quality_start[i] >= 0};
        if (read.has_qualities) {
          read.qualities = part(buffer, rows.quality_start[i], rows.length[i]);
        }
        result.reads.push_back(std::move(read));
      }
    };
    while (true) {
      fuzz::Exact exact(buffer);
      try {
        const i64 used_before = used, row_before = row;
        std::tie(used, row) = parser.parse(
            InOut<u8>(exact.data(), {exact.size()}), used, static_cast<i64>(exact.size()), final,
            in_out(&rows.base_start), in_out(&rows.quality_start), in_out(&rows.length),
            in_out(&rows.name_start), in_out(&rows.name_length), row);
        CHECK(used_before <= used && used <= static_cast<i64>(exact.size()));
        CHECK(row_before <= row && row <= static_cast<i64>(rows_of_take));
        buffer = exact.text();
      } catch (const ParseError& problem) {
        buffer = exact.text();
        result.problem = problem.what();
        CHECK(!result.problem.empty());
        keep(parser.records() - static_cast<i64>(before));
        return result;
      }
      if (row == static_cast<i64>(rows_of_take) || final) break;
      if (next_piece == pieces.end()) {
        final = true;
      } else {
        buffer += *next_piece++;
      }
    }
    rest = buffer.substr(static_cast<std::size_t>(used));
    keep(row);
    for (const auto& [name, value] : parser.take_counts()) {
      result.counts[name] += std::any_cast<i64>(value);
    }
    more = row > 0;
    if (!more) CHECK(final && rest.empty());
    CHECK(parser.records() == static_cast<i64>(result.reads.size()));
  }
  result.qualities = {parser.lowest_quality(), parser.highest_quality(), parser.qualities()};
  return result;
}

struct Model {
  bool valid = true;
  std::vector<Read> reads;
};

// What the text holds, up to the first fault.
Model model_of(const Text& text, int phred_offset) {
  Model model;
  std::size_t at = 0;
  auto line = [&](Text* out) {
    const std::size_t stop = text.find('\n', at);
    const bool whole = stop != Text::npos;
    *out = text.substr(at, (whole ? stop : text.size()) - at);
    fuzz::trim(out);
    at = whole ? stop + 1 : text.size();
    return whole;
  };
  auto skip_blank = [&] { at = std::min(text.find_first_not_of("\r\n", at), text.size()); };
  auto name_of = [](const Text& header) {
    return header.substr(1, header.find_first_of(" \t", 1) - 1);
  };
  skip_blank();
  const bool fastq = at < text.size() && text[at] == '@';
  model.valid = at == text.size() || text[at] == '>' || (fastq && at == 0);
  bool blank = false;
  while (model.valid && at < text.size()) {
    Read read{"", "", "", fastq};
    Text header;
    model.valid = false;
    if (text[at] != (fastq ? '@' : '>') || (fastq && blank)) break;
    const bool whole_header = line(&header);
    read.name = name_of(header);
    if (fastq) {
      Text plus;
      if (!whole_header || !line(&read.bases) || at == text.size() || text[at] != '+' ||
          !line(&plus)) {
        break;
      }
      line(&read.qualities);
      bool printable = true;
      for (const unsigned char c : read.qualities) {
        printable = printable && c >= phred_offset && c <= 126;
      }
      if (!printable || read.qualities.size() != read.bases.size()) break;
    } else {
      while (at < text.size() && text[at] != '>') {
        Text sequence;
        line(&sequence);
        read.bases += sequence;
      }
    }
    model.valid = !read.name.empty() && fuzz::only(read.bases, fuzz::kNucleotides);
    if (!model.valid) break;
    model.reads.push_back(std::move(read));
    if (fastq) {
      const std::size_t end = at;
      skip_blank();
      blank = at > end;
    }
  }
  return model;
}

void check_mates(const std::vector<Read>& reads) {
  Text names;
  std::vector<std::int64_t> start;
  std::vector<i32> length, suffix(reads.size() / 2 * 2, -7);
  for (std::size_t i = 0; i < suffix.size(); ++i) {
    start.push_back(static_cast<std::int64_t>(names.size()));
    length.push_back(static_cast<i32>(reads[i].name.size()));
    names += reads[i].name;
  }
  fuzz::Exact exact(names);
  const i64 bad = match_mates(In<u8>(exact.data(), {exact.size()}),
                              In<std::int64_t>(start.data(), {start.size()}),
                              In<i32>(length.data(), {length.size()}), in_out(&suffix));
  for (std::size_t i = 0; i < suffix.size(); i += 2) {
    const Text &one = reads[i].name, &two = reads[i + 1].name;
    i32 expected = one == two ? 0 : -1;
    for (const char* mark : {"/", "_", "."}) {
      const std::size_t n = one.size();
      if (n >= 2 && one.substr(n - 2) == mark + Text("1") && two == one.substr(0, n - 1) + "2") {
        expected = 2;
      }
    }
    if (bad == static_cast<i64>(i / 2)) {
      CHECK(expected < 0);
      return;
    }
    CHECK(suffix[i] == expected && suffix[i + 1] == expected);
  }
  CHECK(bad < 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Text text = fuzz::text_of(data, size);
  fuzz::Random random(text);
  const int phred_offset = random.below(4) ? 33 : 64;
  const auto cuttings = fuzz::cuttings_of(text, &random);
  const Result result = parse(cuttings[0], text.size() + 1, phred_offset);
  for (const auto& pieces : cuttings) {
    CHECK(parse(pieces, 1 + random.below(4), phred_offset) == result);
  }
  const Model model = model_of(text, phred_offset);
  CHECK(model.reads == result.reads);
  CHECK(model.valid == result.problem.empty());
  check_mates(result.reads);
  if (!model.valid) return 0;

  std::map<Text, i64> counts;
  i64 qualities = 0;
  for (const Read& read : model.reads) {
    counts["reads"] += 1;
    counts["bases"] += static_cast<i64>(read.bases.size());
    counts["empty"] += read.bases.empty();
    counts["short"] += static_cast<i64>(read.bases.size()) < kShort;
    counts["with_n"] += fuzz::count(read.bases, "Nn.") > 0;
    counts["with_iupac"] += fuzz::count(read.bases, "URYSWKMBDHVXuryswkmbdhvx") > 0;
    counts["lower_case"] += fuzz::count(read.bases, "acgturyswkmbdhvxn") > 0;
    qualities += static_cast<i64>(read.qualities.size());
  }
  for (const auto& [name, value] : counts) CHECK(result.counts.at(name) == value);
  CHECK(result.qualities[2] == qualities);
  return 0;
}

// PAF.
#include "dlasm/paf.hpp"

#include "fuzz.hpp"

namespace {

using dlasm::i32;
using dlasm::i64;
using dlasm::PafColumns;
using dlasm::u8;
using fuzz::Text;

// The columns of a text; places of names become places in the whole text, from `begin` on.
PafColumns parse(const Text& text, std::size_t begin, std::size_t length, i64 line) {
  fuzz::Exact exact(text.substr(begin, length));
  PafColumns columns = dlasm::read_paf(exact.data(), static_cast<i64>(exact.size()));
  const std::size_t rows = columns.read.size();
  CHECK(columns.mate.size() == rows && columns.reverse.size() == rows &&
        columns.read_length.size() == rows && columns.left.size() == rows &&
        columns.right.size() == rows && columns.contig_name_start.size() == rows &&
        columns.contig_name_length.size() == rows && columns.contig_length.size() == rows &&
        columns.contig_start.size() == rows && columns.contig_end.size() == rows &&
        columns.matches.size() == rows && columns.score.size() == rows &&
        columns.kind.size() == rows && columns.rough.size() == rows && columns.line.size() == rows);
  for (auto& start : columns.contig_name_start) start += static_cast<i64>(begin);
  for (auto& each : columns.line) each += line;
  return columns;
}

void append(PafColumns* to, const PafColumns& from) {
  fuzz::append(&to->read, from.read);
  fuzz::append(&to->mate, from.mate);
  fuzz::append(&to->reverse, from.reverse);
  fuzz::append(&to->read_length, from.read_length);
  fuzz::append(&to->left, from.left);
  fuzz::append(&to->right, from.right);
  fuzz::append(&to->contig_name_start, from.contig_name_start);
  fuzz::append(&to->contig_name_length, from.contig_name_length);
  fuzz::append(&to->contig_length, from.contig_length);
  fuzz::append(&to->contig_start, from.contig_start);
  fuzz::append(&to->contig_end, from.contig_end);
  fuzz::append(&to->matches, from.matches);
  fuzz::append(&to->score, from.score);
  fuzz::append(&to->kind, from.kind);
  fuzz::append(&to->rough, from.rough);
  fuzz::append(&to->line, from.line);
  to->lines += from.lines;
  to->problem = from.problem;
}

bool same(const PafColumns& a, const PafColumns& b) {
  return a.read == b.read && a.mate == b.mate && a.reverse == b.reverse &&
         a.read_length == b.read_length && a.left == b.left && a.right == b.right &&
         a.contig_name_start == b.contig_name_start &&
         a.contig_name_length == b.contig_name_length && a.contig_length == b.contig_length &&
         a.contig_start == b.contig_start && a.contig_end == b.contig_end &&
         a.matches == b.matches && a.score == b.score && a.kind == b.kind && a.rough == b.rough &&
         a.line == b.line && a.lines == b.lines && a.problem == b.problem;
}

i64 number(const Text& field) { return std::strtoll(field.c_str(), nullptr, 10); }

// Compares a row with the fields of its line.
void check_row(const Text& text, const PafColumns& columns, std::size_t row,
               const std::vector<Text>& fields) {
  const i64 start = columns.contig_name_start[row], length = columns.contig_name_length[row];
  CHECK(start >= 0 && length >= 0 && start + length <= static_cast<i64>(text.size()));
  CHECK(fields.size() >= 12);
  CHECK(text.compare(static_cast<std::size_t>(start), static_cast<std::size_t>(length),
                     fields[5]) == 0);
  const auto key = dlasm::name_key(reinterpret_cast<const u8*>(fields[0].data()),
                                   static_cast<i64>(fields[0].size()));
  CHECK(columns.read[row] == key.hash && columns.mate[row] == key.mate);
  CHECK(columns.read_length[row] == number(fields[1]));
  const i64 before = number(fields[2]), after = number(fields[1]) - number(fields[3]);
  const bool reverse = fields[4] == "-";
  CHECK(reverse || fields[4] == "+");
  CHECK(columns.reverse[row] == reverse);
  CHECK(columns.left[row] == (reverse ? after : before));
  CHECK(columns.right[row] == (reverse ? before : after));
  CHECK(columns.left[row] >= 0 && columns.right[row] >= 0 &&
        i64{columns.left[row]} + columns.right[row] <= columns.read_length[row]);
  CHECK(columns.contig_length[row] == number(fields[6]));
  CHECK(columns.contig_start[row] == number(fields[7]));
  CHECK(columns.contig_end[row] == number(fields[8]));
  CHECK(0 <= columns.contig_start[row] && columns.contig_start[row] <= columns.contig_end[row] &&
        columns.contig_end[row] <= columns.contig_length[row]);
  CHECK(columns.matches[row] == number(fields[9]) && columns.matches[row] >= 0);
  i64 score = INT32_MIN;
  u8 kind = 0;
  bool chained = false;
  for (std::size_t i = 12; i < fields.size(); ++i) {
    const Text name = fields[i].substr(0, 5);
    if (fields[i].size() <= 5) continue;
    if (name == "AS:i:") score = number(fields[i].substr(5));
    if (name == "s1:i:") chained = true;
    if (name == "tp:A:" && fields[i].size() == 6) kind = static_cast<u8>(fields[i][5]);
  }
  CHECK(columns.score[row] == score && columns.kind[row] == kind);
  CHECK(columns.rough[row] == (chained && score == INT32_MIN));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Text text = fuzz::text_of(data, size);
  fuzz::Random random(text);
  const PafColumns columns = parse(text, 0, text.size(), 0);

  // blocks of whole lines, as `_iter_paf` in alignments.py makes them
  PafColumns joined;
  for (std::size_t at = 0; at < text.size() && joined.problem.empty();) {
    const std::size_t end = text.find('\n', at + random.below(text.size() - at));
    const std::size_t length = (end == Text::npos ? text.size() : end + 1) - at;
    append(&joined, parse(text, at, length, joined.lines));
    at += length;
  }
  CHECK(same(columns, joined));

  // every line before the fault gives a row, or says that it has no alignment
  const auto lines = fuzz::lines_of(text);
  CHECK(columns.lines <= static_cast<i64>(lines.size()));
  CHECK(columns.problem.empty() == (columns.lines == static_cast<i64>(lines.size())));
  std::size_t row = 0;
  for (i64 i = 0; i < columns.lines; ++i) {
    Text line = lines[static_cast<std::size_t>(i)];
    fuzz::trim(&line);
    if (line.empty()) continue;
    const auto fields = fuzz::split(line, "\t", false);
    CHECK(fields.size() >= 12);
    if (fields[5] == "*") continue;
    CHECK(row < columns.read.size() && columns.line[row] == i);
    check_row(text, columns, row++, fields);
  }
  CHECK(row == columns.read.size());
  return 0;
}

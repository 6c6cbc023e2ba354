// Records of BAM, as they are after decompression.
//
// A text whose first byte is odd holds records without their lengths, each after one byte that says
// how long it is: so the lengths of mutated records are right more often.
#include "dlasm/io/bam.cpp"

#include "fuzz.hpp"

namespace {

using fuzz::Text;

const std::vector<std::int64_t> kContigLength = {100, 0, 5000, 40};
const std::vector<i32> kContig = {2, 0, 3};  // of each reference
constexpr double kBound = 300;

template <class T>
In<T> in(const std::vector<T>& values) {
  static const T kNothing{};
  return In<T>(values.empty() ? &kNothing : values.data(), {values.size()});
}

struct Rows {
  std::vector<u8> rows;
  std::vector<std::int64_t> kept;
  std::int64_t bad;
  Text problem;
  bool operator==(const Rows& o) const {
    return rows == o.rows && kept == o.kept && bad == o.bad && problem == o.problem;
  }
};

std::vector<std::int64_t> offsets_of(fuzz::Exact* text, bool* malformed) {
  const auto given = record_offsets(In<u8>(text->data(), {text->size()}));
  *malformed = std::get<1>(given);
  auto offsets = fuzz::values_of(std::get<0>(given));
  CHECK(!offsets.empty() && offsets[0] == 0 &&
        offsets.back() <= static_cast<std::int64_t>(text->size()));
  for (std::size_t i = 1; i < offsets.size(); ++i) CHECK(offsets[i - 1] + kFixed < offsets[i]);
  return offsets;
}

Rows rows_of(fuzz::Exact* text, const std::vector<std::int64_t>& offsets, int threads) {
  const auto given = record_rows(In<u8>(text->data(), {text->size()}), in(offsets), 7, in(kContig),
                                 in(kContigLength), kBound, threads);
  return {fuzz::values_of(std::get<0>(given)), fuzz::values_of(std::get<1>(given)),
          std::get<2>(given), std::get<3>(given)};
}

Row row_at(const Rows& rows, std::size_t i) {
  Row row;
  std::memcpy(&row, rows.rows.data() + i * sizeof(Row), sizeof(Row));
  return row;
}

// The record offsets in a text that comes in pieces, as `AlignmentsFile.records` finds them.
void check_pieces(const Text& text, const std::vector<Text>& pieces,
                  const std::vector<std::int64_t>& offsets, bool malformed) {
  std::vector<std::int64_t> found{0};
  Text rest;
  std::int64_t before = 0;
  bool stop = false;
  for (std::size_t i = 0; i < pieces.size() && !stop; ++i) {
    rest += pieces[i];
    fuzz::Exact exact(rest);
    const auto some = offsets_of(&exact, &stop);
    for (std::size_t j = 1; j < some.size(); ++j) found.push_back(before + some[j]);
    before += some.back();
    rest.erase(0, static_cast<std::size_t>(some.back()));
  }
  CHECK(found == offsets && stop == malformed);
  if (!stop) CHECK(text.size() == static_cast<std::size_t>(before) + rest.size());
}

void check_records(fuzz::Exact* text, const std::vector<std::int64_t>& offsets, const Rows& rows) {
  std::vector<std::int64_t> all;
  std::size_t primary = 0;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    all.push_back(static_cast<std::int64_t>(i));
    const Record record(text->data() + offsets[i], offsets[i + 1] - offsets[i]);
    if (record.flag() & (kSecondary | kSupplementary)) continue;
    const Row row = row_at(rows, primary++);
    CHECK(row.record == static_cast<std::int64_t>(7 + i));
    CHECK(row.contig >= -1 && row.contig < static_cast<i32>(kContigLength.size()));
    CHECK(row.contig < 0 || (0 <= row.start && row.start <= row.end));
    CHECK(row.left >= 0 && row.right >= 0);
  }
  CHECK(rows.rows.size() == primary * sizeof(Row));
  const auto input = In<u8>(text->data(), {text->size()});

  // copies without tags say the same
  fuzz::Exact copied([&] {
    const auto copy = copy_records(input, in(offsets), in(all));
    return fuzz::text_of(copy.data(), copy.shape(0));
  }());
  bool malformed;
  const auto copied_offsets = offsets_of(&copied, &malformed);
  CHECK(!malformed && copied_offsets.size() == offsets.size());
  CHECK(copied_offsets.back() == static_cast<std::int64_t>(copied.size()));
  CHECK(rows_of(&copied, copied_offsets, 1) == rows);

  const auto [out, base_start, quality_start, length] = record_bases(input, in(offsets), in(all));
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Record record(text->data() + offsets[i], offsets[i + 1] - offsets[i]);
    const i64 bases = record.bases();
    CHECK(length.data()[i] == bases && base_start.data()[i] == filled);
    for (i64 j = 0; j < bases; ++j) {
      const u8 both = record.packed_bases()[j / 2];
      CHECK(out.data()[filled + j] ==
            static_cast<u8>("=ACMGRSVTWYHKDBN"[j % 2 ? both & 15 : both >> 4]));
    }
    filled += bases;
    if (quality_start.data()[i] >= 0) {
      CHECK(quality_start.data()[i] == filled);
      CHECK(!std::memcmp(out.data() + filled, record.qualities(), static_cast<std::size_t>(bases)));
      filled += bases;
    } else {
      CHECK(!bases || record.qualities()[0] == 0xFF);
    }
    CHECK(filled <= static_cast<std::int64_t>(out.shape(0)));
  }
}

Text with_lengths(const Text& text) {
  Text out;
  for (std::size_t at = 1; at < text.size();) {
    const Text record = text.substr(at + 1, static_cast<unsigned char>(text[at]));
    const i32 length = static_cast<i32>(record.size());
    out += fuzz::text_of(&length, sizeof(length)) + record;
    at += 1 + record.size();
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Text text = fuzz::text_of(data, size);
  fuzz::Random random(text);
  if (size && data[0] % 2) text = with_lengths(text);
  fuzz::Exact exact(text);
  bool malformed;
  auto offsets = offsets_of(&exact, &malformed);
  for (const auto& pieces : fuzz::cuttings_of(text, &random)) {
    check_pieces(text, pieces, offsets, malformed);
  }
  const Rows rows = rows_of(&exact, offsets, 1);
  CHECK((rows.bad < 0) == rows.problem.empty());
  CHECK(rows.bad < static_cast<std::int64_t>(offsets.size()) - 1);
  CHECK(rows_of(&exact, offsets, 3) == rows);
  if (rows.bad >= 0) {
    // of the records before it, all are good
    offsets.resize(static_cast<std::size_t>(rows.bad) + 1);
    check_records(&exact, offsets, rows_of(&exact, offsets, 1));
  } else {
    check_records(&exact, offsets, rows);
  }
  if (offsets.size() > 1 && random.below(16) == 0) {
    // more records than one thread takes at a time
    Text many;
    std::vector<std::int64_t> many_offsets;
    const Text once = text.substr(0, static_cast<std::size_t>(offsets.back()));
    while (many_offsets.size() <= 2 * kRecordBlock) {
      for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        many_offsets.push_back(static_cast<std::int64_t>(many.size()) + offsets[i]);
      }
      many += once;
    }
    many_offsets.push_back(static_cast<std::int64_t>(many.size()));
    fuzz::Exact copies(many);
    CHECK(rows_of(&copies, many_offsets, 1) == rows_of(&copies, many_offsets, 3));
  }
  return 0;
}

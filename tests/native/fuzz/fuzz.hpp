// What the targets share. A target parses a text whole and in pieces, compares the results with
// each other and with those of a plain model, and aborts if they differ.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

using Text = std::string;

inline Text text_of(const void* data, std::size_t size) {
  return Text(static_cast<const char*>(data), size);
}

// Memory of exactly this size, so that the address sanitizer sees each byte read beyond it.
class Exact {
 public:
  explicit Exact(const Text& text) : size_(text.size()), data_(new unsigned char[text.size()]) {
    if (size_) std::memcpy(data_.get(), text.data(), size_);
  }
  unsigned char* data() { return data_.get(); }
  std::size_t size() const { return size_; }
  Text text() const { return text_of(data_.get(), size_); }

 private:
  std::size_t size_;
  std::unique_ptr<unsigned char[]> data_;
};

// Random numbers that depend on the text alone, so that a text is all that a finding needs.
class Random {
 public:
  explicit Random(const Text& text) {
    for (const unsigned char c : text) state_ = (state_ ^ c) * 0x100000001B3ull;
  }
  std::uint64_t next() {  // splitmix64
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325ull;
};

// Cuts a text into pieces: at most `longest` bytes each, of random length if there is `random`.
inline std::vector<Text> pieces_of(const Text& text, std::size_t longest,
                                   Random* random = nullptr) {
  std::vector<Text> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = random ? 1 + random->below(longest) : longest;
    pieces.push_back(text.substr(at, length));
    at += length;
  }
  return pieces;
}

// Ways to cut a text: whole, into small pieces (bytes if it is short), and twice at random.
inline std::vector<std::vector<Text>> cuttings_of(const Text& text, Random* random) {
  return {pieces_of(text, text.size() + 1), pieces_of(text, 1 + text.size() / 64),
          pieces_of(text, 1 + text.size() / 16, random),
          pieces_of(text, 1 + text.size() / 2, random)};
}

// Lines without their line feeds; what follows the last line feed is a line if it is not empty.
inline std::vector<Text> lines_of(const Text& text) {
  std::vector<Text> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t stop = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, stop - at));
    at = stop + 1;
  }
  return lines;
}

// Takes away a carriage return at the end; whether there was one.
inline bool trim(Text* line) {
  if (line->empty() || line->back() != '\r') return false;
  line->pop_back();
  return true;
}

inline std::vector<Text> split(const Text& line, const char* separators, bool skip_empty) {
  std::vector<Text> fields;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t stop = std::min(line.find_first_of(separators, at), line.size());
    if (stop > at || !skip_empty) fields.push_back(line.substr(at, stop - at));
    at = stop + 1;
  }
  return fields;
}

inline bool only(const Text& text, const char* allowed) {
  return text.find('\0') == Text::npos && text.find_first_not_of(allowed) == Text::npos;
}

constexpr char kNucleotides[] = "ACGTURYSWKMBDHVXNacgturyswkmbdhvxn.";
constexpr char kNucleotidesAndGap[] = "ACGTURYSWKMBDHVXNacgturyswkmbdhvxn.-";

inline std::size_t count(const Text& text, const char* characters) {
  std::size_t n = 0;
  for (const char c : text) n += c && std::strchr(characters, c);
  return n;
}

// An array, or part of it, as a vector.
template <class Array>
auto values_of(const Array& array) {
  using Element = std::remove_const_t<typename Array::Element>;
  return std::vector<Element>(array.data(), array.data() + array.shape(0));
}

template <class T>
void append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace fuzz

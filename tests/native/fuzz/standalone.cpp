// Runs a target without libFuzzer, where there is no clang: on the files that are named, and on
// mutations of them: standalone MUTATIONS FILES...
#include <fstream>
#include <iterator>

#include "fuzz.hpp"

namespace {

void mutate(fuzz::Text* text, fuzz::Random* random) {
  static const char kCharacters[] = ">@+\n\r\t NnAx-.019/#I~";
  for (std::size_t i = 1 + random->below(4); i > 0; --i) {
    const std::size_t at = random->below(text->size() + 1);
    const std::size_t length = random->below(1 + random->below(16));
    const char character = random->below(4) ? kCharacters[random->below(sizeof(kCharacters) - 1)]
                                            : static_cast<char>(random->next());
    switch (random->below(4)) {
      case 0:
        text->erase(at, length);
        break;
      case 1:
        text->insert(at, 1, character);
        break;
      case 2:
        text->insert(at, text->substr(random->below(text->size() + 1), length));
        break;
      default:
        if (at < text->size()) (*text)[at] = character;
    }
  }
}

void run(const fuzz::Text& text) {
  fuzz::Exact exact(text);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 2; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    const fuzz::Text text{std::istreambuf_iterator<char>(file), {}};
    run(text);
    fuzz::Random random(text);
    for (int j = std::atoi(arguments[1]); j > 0; --j) {
      fuzz::Text mutated = text;
      mutate(&mutated, &random);
      // what is there when the target aborts is the finding
      std::ofstream("mutated", std::ios::binary) << mutated;
      run(mutated);
    }
  }
}

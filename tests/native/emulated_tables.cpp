// The kernels with k-mer tables on the CPU, called with the addresses of their arguments.
#include <cstring>

#include "emulate.hpp"

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

#include "extend_tables.cu"

extern "C" int launch(const char* name, int grid, int block, void** arguments) {
  using dlasm::Batch;
  const Batch& batch = *static_cast<const Batch*>(arguments[0]);
  if (std::strcmp(name, "spell_walks") == 0) {
    emulated::launch(spell_walks, grid, block, batch,
                     *static_cast<const dlasm::i64**>(arguments[1]),
                     *static_cast<dlasm::u8**>(arguments[2]));
  } else if (std::strcmp(name, "count_support") == 0) {
    emulated::launch(
        count_support, grid, block, batch, *static_cast<const dlasm::i64**>(arguments[1]),
        *static_cast<dlasm::u32**>(arguments[2]), *static_cast<dlasm::u8**>(arguments[3]));
  } else if (std::strcmp(name, "extend_v1") == 0 || std::strcmp(name, "extend_v2") == 0) {
    emulated::launch(std::strcmp(name, "extend_v1") == 0 ? extend_v1 : extend_v2, grid, block,
                     batch, *static_cast<const dlasm::Tables*>(arguments[1]));
  } else {
    return 1;
  }
  return 0;
}

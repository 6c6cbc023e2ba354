// The kernels without tables on the CPU, called with the addresses of their arguments.
#include <cstring>

#include "emulate.hpp"
#include "extend_fast.cu"

extern "C" int launch(const char* name, int grid, int block, void** arguments) {
  const dlasm::Batch& batch = *static_cast<const dlasm::Batch*>(arguments[0]);
  if (std::strcmp(name, "spell_walks") == 0) {
    emulated::launch(spell_walks, grid, block, batch,
                     *static_cast<const dlasm::i64**>(arguments[1]),
                     *static_cast<dlasm::u8**>(arguments[2]));
    return 0;
  }
  if (std::strcmp(name, "count_support") == 0) {
    emulated::launch(
        count_support, grid, block, batch, *static_cast<const dlasm::i64**>(arguments[1]),
        *static_cast<dlasm::u32**>(arguments[2]), *static_cast<dlasm::u8**>(arguments[3]));
    return 0;
  }
  void (*kernel)(const dlasm::Batch) = nullptr;
  if (std::strcmp(name, "extend_small") == 0) kernel = extend_small;
  if (std::strcmp(name, "extend_middle") == 0) kernel = extend_middle;
  if (std::strcmp(name, "extend_large") == 0) kernel = extend_large;
  if (!kernel) return 1;
  emulated::launch(kernel, grid, block, batch);
  return 0;
}

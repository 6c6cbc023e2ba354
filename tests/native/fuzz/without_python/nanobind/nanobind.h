// The part of nanobind that the parsers use, without Python, so that they can be fuzzed as they
// stand in programs that need nothing but the C library. Nothing is bound.
#pragma once

#include <any>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

inline void* PyExc_ValueError = nullptr;

namespace nanobind {

inline void set_leak_warnings(bool) {}

struct gil_scoped_release {
  gil_scoped_release() {}
};

// ---- arrays

struct numpy {};
struct c_contig {};
template <std::size_t>
struct ndim {};
namespace device {
struct cpu {};
}  // namespace device

class capsule {
 public:
  capsule() = default;
  capsule(void* data, void (*release)(void*) noexcept) : kept_(data, release) {}

 private:
  std::shared_ptr<void> kept_;
};

template <class First, class Second, class...>
struct ElementOf {
  using type = First;
};
template <class Second, class... Rest>
struct ElementOf<numpy, Second, Rest...> {
  using type = Second;
};

template <class... Options>
class ndarray {
 public:
  using Element = typename ElementOf<Options...>::type;

  ndarray(Element* data, std::initializer_list<std::size_t> shape, capsule owner = {})
      : data_(data), size_(*shape.begin()), owner_(std::move(owner)) {}
  Element* data() const { return data_; }
  std::size_t shape(int) const { return size_; }

 private:
  Element* data_;
  std::size_t size_;
  capsule owner_;
};

// ---- what functions give

using tuple = std::vector<std::any>;
using dict = std::map<std::string, std::any>;

template <class... Values>
tuple make_tuple(Values&&... values) {
  return {std::any(std::forward<Values>(values))...};
}

// ---- bindings: they must compile

struct arg {
  template <class Value>
  arg& operator=(const Value&) {
    return *this;
  }
};
inline namespace literals {
inline arg operator""_a(const char*, std::size_t) { return {}; }
}  // namespace literals

template <class...>
struct init {};
template <class Function>
int new_(Function) {
  return 0;
}
template <class>
struct exception {
  template <class... Arguments>
  explicit exception(Arguments&&...) {}
};
template <class>
struct class_ {
  template <class... Arguments>
  explicit class_(Arguments&&...) {}
  template <class... Arguments>
  class_& def(Arguments&&...) {
    return *this;
  }
  template <class... Arguments>
  class_& def_prop_ro(Arguments&&...) {
    return *this;
  }
};

}  // namespace nanobind

#define NB_MODULE(name, m) \
  template <class Module>  \
  void bind_##name(Module& m)

#include <nanobind/nanobind.h>
NB_MODULE(_parse, m) { (void)m; }

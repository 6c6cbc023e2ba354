#include <nanobind/nanobind.h>
NB_MODULE(_minimap, m) { (void)m; }

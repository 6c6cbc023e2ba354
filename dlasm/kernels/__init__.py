"""Rules in headers that the C++ and the CUDA compiler read, and the engines built from them."""

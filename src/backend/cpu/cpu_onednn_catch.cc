/*
 * cpu_onednn_catch.cc - oneDNN is C++, and what it throws ends here.
 *
 * The library's only C++: a handler of exceptions has no form in C. Through the functions in C
 * between this one and oneDNN an exception passes (-fexceptions, cmake/EvenkeelSources.cmake).
 */
#include <new>

extern "C" {
#include "backend/cpu/cpu_onednn.h"

int ek__cpu_onednn_catch(ek__onednn_function *function, void *arg, int no_memory, int other) {
  try {
    return function(arg);
  } catch (const std::bad_alloc &) {
    return no_memory;
  } catch (...) {
    return other;
  }
}
}

/*
 * cuemu_portable.h - launching kernels in C++ without <<<>>>.
 *
 *   EK_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)   a statement, as <<<>>> is
 *   EK_DYNAMIC_SHARED(type, name)                                        type *name, aligned to 16
 *
 * The kernel's arguments are converted to its parameter types and copied, as a launch does; the
 * block executor calls the kernel once for each CUDA thread. A failed launch is seen by
 * cudaGetLastError().
 */
#ifndef CUEMU_PORTABLE_H
#define CUEMU_PORTABLE_H

#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

extern "C" {
/* Queues a kernel. `run(closure)` is one CUDA thread; `release(closure)` is called once, also when
   the launch fails. `kernel` identifies it for cudaFuncSetAttribute(); `bounded` kernels tell how
   many threads their blocks may have. */
cudaError_t cuemu_launch(const char *name, const void *kernel, bool bounded, void (*run)(void *),
                         void (*release)(void *), void *closure, size_t closure_bytes, dim3 grid,
                         dim3 block, size_t shared_bytes, cudaStream_t stream);
void *cuemu_dynamic_shared(void);
}

namespace cuemu {

template <class... P> struct closure {
  void (*kernel)(P...);
  std::tuple<std::remove_cv_t<P>...> arguments;

  static void run(void *self) {
    auto *c = static_cast<closure *>(self);
    std::apply(c->kernel, c->arguments);
  }
  static void release(void *self) { delete static_cast<closure *>(self); }
};

template <bool BOUNDED, class... P, class... A>
inline void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream, A &&...arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel has another number of parameters");
  static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied as bytes");
  /* Old addresses in the padding between arguments would look like arguments. The compiler may not
   * take the zeros for dead. */
  void *memory = std::memset(::operator new(sizeof(closure<P...>)), 0, sizeof(closure<P...>));
  __asm__ volatile("" : : "r"(memory) : "memory");
  auto *c = new (memory) closure<P...>{kernel, {static_cast<P>(arguments)...}};
  (void)cuemu_launch(name, reinterpret_cast<const void *>(kernel), BOUNDED, &closure<P...>::run,
                     &closure<P...>::release, c, sizeof(*c), grid, block, shared_bytes, stream);
}

} // namespace cuemu

#ifndef CUEMU_BOUNDED
#define CUEMU_BOUNDED false
#endif
#define EK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                  \
  ::cuemu::launch<CUEMU_BOUNDED>(#kernel, kernel, dim3(grid), dim3(block), (shared_bytes),         \
                                 (stream), __VA_ARGS__)
#define EK_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(cuemu_dynamic_shared())

template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute,
                                               int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <class T> static inline cudaError_t cudaMalloc(T **pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void **>(pointer), bytes);
}

#endif

/*
 * fiber.h - stacks that one thread of the system switches between.
 *
 * A fiber belongs to one thread as long as a kernel runs on it: the kernel's thread-local variables
 * keep their addresses. Between kernels its block may go to another thread. Every switch is told to
 * the sanitizers. ThreadSanitizer is told that a switch orders nothing, so that what CUDA does not
 * order stays a race; cuemu_acquire() and cuemu_release_to() say what is ordered. This file and the
 * executor are compiled without sanitizers, and with CUEMU_TSAN or CUEMU_ASAN: the bookkeeping of
 * the scheduler is not the program's. AddressSanitizer sees its memcpy() and memset().
 */
#ifndef CUEMU_FIBER_H
#define CUEMU_FIBER_H

#include <stddef.h>

#if !defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
#define CUEMU_UCONTEXT 1
#endif
#ifdef CUEMU_UCONTEXT
#include <ucontext.h>
#endif

struct cuemu_fiber {
  struct cuemu_fiber *next; /* for lists of the owner */
  char *stack;              /* lowest address, above a guard page */
  size_t bytes;
  int number;
  void (*entry)(void);
#ifdef CUEMU_UCONTEXT
  ucontext_t context;
#else
  void *top; /* stack pointer while it does not run */
#endif
  void *asan_stack, *tsan_fiber;
};

/* Makes the calling thread's own stack a fiber. */
void cuemu_fiber_adopt(struct cuemu_fiber *fiber);

/* `entry` never returns; it calls cuemu_fiber_entered() first. `number` spreads stacks in the
 * cache. */
struct cuemu_fiber *cuemu_fiber_new(void (*entry)(void), int number);

/* Forgets whatever runs on the fiber: it begins anew at its entry. */
void cuemu_fiber_restart(struct cuemu_fiber *fiber);
void cuemu_fiber_entered(void);
#if defined(CUEMU_UCONTEXT) || defined(CUEMU_ASAN) || defined(CUEMU_TSAN)
void cuemu_fiber_switch(struct cuemu_fiber *from, struct cuemu_fiber *to);
#else
/* Saves the callee-saved registers and the stack pointer, and goes on where `load` was saved. */
__attribute__((visibility("hidden"))) void cuemu_switch_stack(void **save, void *load);
static inline void cuemu_fiber_switch(struct cuemu_fiber *from, struct cuemu_fiber *to) {
  cuemu_switch_stack(&from->top, to->top);
}
#endif

/* CUEMU_GATE(name): the function `name` for kernels, which calls name_here() and goes back by a
 * jump. The processor predicts a return from the calls before it. Where fibers are switched the
 * last call was another CUDA thread's, mostly from its next place in the kernel, so that nearly
 * every return was predicted wrongly. A jump is predicted from where it went before: the same
 * place. */
#ifdef CUEMU_UCONTEXT
#define CUEMU_GATE_HERE(name) name
#define CUEMU_GATE(name)
#else
#define CUEMU_GATE_HERE(name) __attribute__((visibility("hidden"))) name##_here
#define CUEMU_GATE(name)                                                                           \
  __asm__(".text\n"                                                                                \
          ".globl " #name "\n"                                                                     \
          ".type " #name ",@function\n" #name ":\n"                                                \
          "  .cfi_startproc\n"                                                                     \
          "  endbr64\n"                                                                            \
          "  subq $8, %rsp\n"                                                                      \
          "  .cfi_adjust_cfa_offset 8\n"                                                           \
          "  call " #name "_here\n"                                                                \
          "  addq $8, %rsp\n"                                                                      \
          "  .cfi_adjust_cfa_offset -8\n"                                                          \
          "  popq %rcx\n"                                                                          \
          "  .cfi_adjust_cfa_offset -8\n"                                                          \
          "  jmp *%rcx\n"                                                                          \
          "  .cfi_endproc\n"                                                                       \
          ".size " #name ", .-" #name "\n");
#endif

#ifdef CUEMU_TSAN
void __tsan_acquire(void *);
void __tsan_release(void *);
#define cuemu_acquire(p) __tsan_acquire(p)
#define cuemu_release_to(p) __tsan_release(p)
/* On behalf of another fiber than the running one. */
void cuemu_fiber_release_to(struct cuemu_fiber *fiber, struct cuemu_fiber *running, char *sync);
#else
#define cuemu_acquire(p) ((void)(p))
#define cuemu_release_to(p) ((void)(p))
#define cuemu_fiber_release_to(fiber, running, sync) ((void)(fiber), (void)(running), (void)(sync))
#endif

#endif

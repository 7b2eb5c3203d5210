/*
 * fiber.c - creating stacks and switching between them; see fiber.h.
 *
 * On x86-64 the switch is a dozen instructions: the callee-saved registers are pushed, the stack
 * pointer is exchanged. Elsewhere, or with CUEMU_UCONTEXT, swapcontext() does it, which asks the
 * kernel for the signal mask each time and is slower.
 */
#include "fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef CUEMU_ASAN
void __sanitizer_start_switch_fiber(void **save, const void *stack, size_t bytes);
void __sanitizer_finish_switch_fiber(void *saved, const void **old_stack, size_t *old_bytes);
void __asan_unpoison_memory_region(void const volatile *address, size_t bytes);
#endif
#ifdef CUEMU_TSAN
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#define TSAN_SWITCH_ORDERS_NOTHING 1u
#endif

#define GUARD_BYTES ((size_t)4096)
#define STACK_BYTES ((size_t)256 << 10) /* committed as touched; instrumented frames are large */

static void fail(const char *what) {
  fprintf(stderr, "cuemu: %s failed\n", what);
  abort();
}

#ifndef CUEMU_UCONTEXT
void cuemu_switch_stack(void **save, void *load); /* see fiber.h */
__asm__(".text\n"
        ".globl cuemu_switch_stack\n"
        ".hidden cuemu_switch_stack\n"
        ".type cuemu_switch_stack,@function\n"
        "cuemu_switch_stack:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size cuemu_switch_stack, .-cuemu_switch_stack\n");

/* What cuemu_switch_stack() finds: six registers, the entry to return to, and a return address for
   it that is never used but makes the stack aligned as after a call. Stacks that all begin at
   the same offset of a page would share few sets of the cache, so each begins elsewhere. */
static void prepare(struct cuemu_fiber *fiber) {
  uintptr_t top = (uintptr_t)fiber->stack + fiber->bytes - (uintptr_t)(fiber->number % 61) * 320;
  void **frame = (void **)((top & ~(uintptr_t)15) - 16);
  *--frame = NULL;
  void (*entry)(void) = fiber->entry;
  memcpy(--frame, &entry, sizeof(entry));
  for (int registers = 0; registers < 6; registers++) *--frame = NULL;
  fiber->top = frame;
}
#else
static void prepare(struct cuemu_fiber *fiber) {
  if (getcontext(&fiber->context)) fail("getcontext");
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = fiber->bytes;
  fiber->context.uc_link = NULL;
  makecontext(&fiber->context, fiber->entry, 0);
}
#endif

void cuemu_fiber_adopt(struct cuemu_fiber *fiber) {
  memset(fiber, 0, sizeof(*fiber));
  pthread_attr_t attributes;
  void *stack = NULL;
  if (pthread_getattr_np(pthread_self(), &attributes)) fail("pthread_getattr_np");
  (void)pthread_attr_getstack(&attributes, &stack, &fiber->bytes);
  pthread_attr_destroy(&attributes);
  fiber->stack = stack;
#ifdef CUEMU_TSAN
  fiber->tsan_fiber = __tsan_get_current_fiber();
#endif
}

struct cuemu_fiber *cuemu_fiber_new(void (*entry)(void), int number) {
  struct cuemu_fiber *fiber = calloc(1, sizeof(*fiber));
  char *memory = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!fiber || memory == MAP_FAILED) fail("memory for a CUDA thread's stack");
  if (mprotect(memory, GUARD_BYTES, PROT_NONE)) fail("mprotect");
  fiber->stack = memory + GUARD_BYTES;
  fiber->bytes = STACK_BYTES;
  fiber->number = number;
  fiber->entry = entry;
#ifdef CUEMU_TSAN
  fiber->tsan_fiber = __tsan_create_fiber(0);
#endif
  prepare(fiber);
  return fiber;
}

void cuemu_fiber_restart(struct cuemu_fiber *fiber) {
#ifdef CUEMU_ASAN
  __asan_unpoison_memory_region(fiber->stack, fiber->bytes);
#endif
#ifdef CUEMU_TSAN
  __tsan_destroy_fiber(fiber->tsan_fiber);
  fiber->tsan_fiber = __tsan_create_fiber(0);
#endif
  prepare(fiber);
}

#if defined(CUEMU_UCONTEXT) || defined(CUEMU_ASAN) || defined(CUEMU_TSAN)
void cuemu_fiber_switch(struct cuemu_fiber *from, struct cuemu_fiber *to) {
#ifdef CUEMU_ASAN
  __sanitizer_start_switch_fiber(&from->asan_stack, to->stack, to->bytes);
#endif
#ifdef CUEMU_TSAN
  __tsan_switch_to_fiber(to->tsan_fiber, TSAN_SWITCH_ORDERS_NOTHING);
#endif
#ifdef CUEMU_UCONTEXT
  (void)swapcontext(&from->context, &to->context);
#else
  cuemu_switch_stack(&from->top, to->top);
#endif
#ifdef CUEMU_ASAN
  __sanitizer_finish_switch_fiber(from->asan_stack, NULL, NULL);
#endif
}
#endif

#ifdef CUEMU_TSAN
void cuemu_fiber_release_to(struct cuemu_fiber *fiber, struct cuemu_fiber *running, char *sync) {
  __tsan_switch_to_fiber(fiber->tsan_fiber, TSAN_SWITCH_ORDERS_NOTHING);
  cuemu_release_to(sync);
  __tsan_switch_to_fiber(running->tsan_fiber, TSAN_SWITCH_ORDERS_NOTHING);
}
#endif

void cuemu_fiber_entered(void) {
#ifdef CUEMU_ASAN
  __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
}

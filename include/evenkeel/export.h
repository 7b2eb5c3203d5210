/*
 * export.h - attributes of declarations.
 */
#ifndef EVENKEEL_EXPORT_H
#define EVENKEEL_EXPORT_H

/*
 * EK_API      The library is compiled with hidden visibility: declarations with EK_API in a public
 *             header are exported, and nothing else is.
 * EK_CHECKED  The compiler warns when the result is not used.
 * EK_BEGIN_DECLARATIONS, EK_END_DECLARATIONS
 *             Declarations between them have C linkage in C++ too.
 * EK_PRINTF   The compiler checks the arguments against the format: EK_PRINTF(text, first) has the
 *             number of the format parameter and that of the first argument to format.
 */
#if defined(__GNUC__)
#define EK_API __attribute__((visibility("default")))
#define EK_CHECKED __attribute__((warn_unused_result))
#define EK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define EK_API
#define EK_CHECKED
#define EK_PRINTF(text, first)
#endif

/* Functions in headers that CUDA kernels can call too. */
#ifdef __CUDACC__
#define EK_INLINE static inline __host__ __device__
#else
#define EK_INLINE static inline
#endif

#ifdef __cplusplus
#define EK_BEGIN_DECLARATIONS extern "C" {
#define EK_END_DECLARATIONS }
#else
#define EK_BEGIN_DECLARATIONS
#define EK_END_DECLARATIONS
#endif

#endif /* EVENKEEL_EXPORT_H */

/*
 * conversion.h - converts integers in host memory for a device: to other integers, or to floating
 * numbers.
 *
 * They are converted while they are copied, in the memory that the copy goes through anyway, and
 * their range is checked in the same pass.
 */
#ifndef EK_CONVERSION_H
#define EK_CONVERSION_H

#include <evenkeel/tensor.h>

struct ek__conversion {
  char who[64];             /* begins messages */
  ek_type to;               /* i32 or i64; f32 or f64 from u8 and u16 */
  ek_input_scaling scaling; /* to f32 and f64; channels is 1 or more */
  int64_t first;            /* the number, in the caller's tensor, of the first element of `data` */
  int64_t per_row;          /* elements of a row of that: for messages */
  const void *data;
  ek_type from;
};

/* Whether a tensor of type `from` in host memory can be converted to `to`. */
bool ek__conversion_exists(ek_type from, ek_type to);

/* struct ek__host_bytes.make, with a struct ek__conversion. EK_ERR_INVALID_ARGUMENT for a number
 * that is out of the range of `to`. */
ek_status ek__conversion_make(const void *context, void *to, size_t first, size_t count);

/*
 * A new tensor of type conversion->to from `source`, which is in host memory:
 * ek_tensor_create_from() otherwise. Data and its type are the source's. In tensor.c.
 */
ek_status ek__tensor_create_converted(ek_tensor *tensor, ek_device *device,
                                      ek_memory_category category, const ek_tensor *source,
                                      const struct ek__conversion *conversion, bool ahead);

/*
 * Sets conversion->to for a source: `type` if that is for integers and the source has integers in
 * host memory, and its own type otherwise; with 0 unsigned integers become i32. EK_ERR_TYPE for a
 * source that cannot be converted to the floating `type`. `who` begins messages.
 */
ek_status ek__conversion_choose(struct ek__conversion *conversion, const char *who,
                                const ek_tensor *source, ek_type type,
                                const ek_input_scaling *scaling);
ek_status ek__input_scaling_check(const char *who, const ek_input_scaling *scaling);

/* tensor.c: between a device and the host; if their floating types differ, element for element
 * (ek__floats_convert()), in pieces on the stack. On a `plan` device nothing is copied. */
ek_status ek__tensor_copy_converted(ek_tensor *destination, const ek_tensor *source);

#endif /* EK_CONVERSION_H */

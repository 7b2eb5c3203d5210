/*
 * flaw.h - finds the fault of a tensor that may have been filled by hand.
 */
#ifndef EK_FLAW_H
#define EK_FLAW_H

#include <evenkeel/tensor.h>

enum { EK__FLAW_TEXT = 64 };

/*
 * NULL, or the fault of the struct of a tensor that exists: "rank 9", "elements but no memory".
 * Memory is required on devices that compute. `text` has room for the words.
 */
const char *ek__tensor_flaw(char text[EK__FLAW_TEXT], const ek_tensor *tensor);

#endif /* EK_FLAW_H */

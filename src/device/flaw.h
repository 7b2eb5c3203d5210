/*
 * flaw.h - finds the fault of a tensor that may have been filled by hand.
 */
#ifndef EK_FLAW_H
#define EK_FLAW_H

#include <evenkeel/tensor.h>

enum { EK__FLAW_TEXT = 64 };

/*
 * NULL, or what the struct of a tensor that exists has and may not have: "rank 9", "elements but no
 * memory". Memory is asked for on devices that compute. `text` has room for the words.
 */
const char *ek__tensor_flaw(char text[EK__FLAW_TEXT], const ek_tensor *tensor);

#endif /* EK_FLAW_H */

/*
 * cuda_loader.h - the CUDA backend, which is a library of its own.
 */
#ifndef EK_CUDA_LOADER_H
#define EK_CUDA_LOADER_H

#include "backend/backend.h"

/* Loads it at the first call; EK_ERR_UNAVAILABLE says why it cannot be loaded. */
ek_status ek__cuda_backend(const struct ek__backend **backend);
/* Whether an earlier call has loaded it. */
bool ek__cuda_loaded(void);

#endif /* EK_CUDA_LOADER_H */

/*
 * cuda_taker.c - as much of CUDA's driver as cuDNN needs to make a plan without a GPU: code is
 * taken and nothing is done with it, and there is no device.
 */
enum { NO_DEVICE = 100 };

static char taken[64]; /* what handles point to */

#define TAKES(name)                                                                                \
  int name(void **made);                                                                           \
  int name(void **made) {                                                                          \
    *made = taken;                                                                                 \
    return 0;                                                                                      \
  }
TAKES(cuLibraryLoadData)
TAKES(cuLibraryGetKernel)
TAKES(cuLibraryGetModule)
TAKES(cuKernelGetFunction)

#define DOES(name, result)                                                                         \
  int name(void);                                                                                  \
  int name(void) { return result; }
DOES(cuLibraryUnload, 0)
DOES(cuKernelSetAttribute, 0)
DOES(cuFuncSetAttribute, 0)

/* Looked up with the others, and not called. */
DOES(cuInit, NO_DEVICE)
DOES(cuGetErrorName, NO_DEVICE)
DOES(cuGetErrorString, NO_DEVICE)
DOES(cuCtxGetCurrent, NO_DEVICE)
DOES(cuCtxGetLimit, NO_DEVICE)
DOES(cuCtxPopCurrent, NO_DEVICE)
DOES(cuCtxPushCurrent, NO_DEVICE)
DOES(cuStreamGetCtx, NO_DEVICE)
DOES(cuDriverGetVersion, NO_DEVICE)
DOES(cuLinkCreate, NO_DEVICE)
DOES(cuLinkAddData, NO_DEVICE)
DOES(cuLinkComplete, NO_DEVICE)
DOES(cuLinkDestroy, NO_DEVICE)
DOES(cuLaunchKernel, NO_DEVICE)
DOES(cuLaunchCooperativeKernel, NO_DEVICE)
DOES(cuDeviceGetCount, NO_DEVICE)
DOES(cuDeviceGet, NO_DEVICE)
DOES(cuLibraryLoadFromFile, NO_DEVICE)
DOES(cuKernelGetAttribute, NO_DEVICE)
DOES(cuOccupancyMaxPotentialClusterSize, NO_DEVICE)
DOES(cuLaunchKernelEx, NO_DEVICE)

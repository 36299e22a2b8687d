// The part of the stand-in for libcuda.so.1 that the real cuDNN uses (fake_cudnn.h). It loads
// modules and finds no device. It does not include cuda.h, which declares these with parameters.
#pragma GCC visibility push(default)

namespace tf_interop {

bool FakeCudaFailsToLoad();

}  // namespace tf_interop

namespace {

enum { kSuccess = 0, kOutOfMemory = 2, kNoDevice = 100 };  // CUresult

int Load(void** loaded) {
  static int module = 0;
  if (tf_interop::FakeCudaFailsToLoad()) return kOutOfMemory;
  *loaded = &module;
  return kSuccess;
}

}  // namespace

extern "C" {

#define LOADS(name) \
  int name(void** loaded) { return Load(loaded); }
LOADS(cuKernelGetFunction)
LOADS(cuLibraryGetKernel)
LOADS(cuLibraryLoadData)
LOADS(cuLibraryLoadFromFile)
LOADS(cuModuleGetFunction)
LOADS(cuModuleLoadData)
LOADS(cuModuleLoadDataEx)

#define RETURNS(name, result) \
  int name() { return result; }
RETURNS(cuFuncSetAttribute, kSuccess)
RETURNS(cuFuncSetCacheConfig, kSuccess)
RETURNS(cuKernelSetAttribute, kSuccess)
RETURNS(cuLibraryUnload, kSuccess)
RETURNS(cuLinkAddData, kSuccess)
RETURNS(cuLinkComplete, kSuccess)
RETURNS(cuLinkCreate, kSuccess)
RETURNS(cuLinkDestroy, kSuccess)
RETURNS(cuModuleUnload, kSuccess)
RETURNS(cuTensorMapEncodeIm2col, kSuccess)
RETURNS(cuTensorMapEncodeTiled, kSuccess)
// Not the _v2 functions to which cuda.h gives these names.
RETURNS(cuCtxPopCurrent, kSuccess)
RETURNS(cuCtxPushCurrent, kSuccess)
RETURNS(cuCtxGetCurrent, kNoDevice)
RETURNS(cuCtxGetLimit, kNoDevice)
RETURNS(cuDeviceGetCount, kNoDevice)
RETURNS(cuGetExportTable, kNoDevice)
RETURNS(cuKernelGetAttribute, kNoDevice)
RETURNS(cuLaunchCooperativeKernel, kNoDevice)
RETURNS(cuLaunchKernel, kNoDevice)
RETURNS(cuLaunchKernelEx, kNoDevice)
RETURNS(cuOccupancyMaxPotentialClusterSize, kNoDevice)

}  // extern "C"

#pragma GCC visibility pop

// The C interface of libtf_interop_core.so: measuring without TensorFlow. Python reaches it with
// ctypes (tf_interop/know/installed/measuring_backend.py, its structs in core_interface.py).
//
// Functions that can fail return 0, or the StatusCode of the failure after giving its message to
// `error`. Nothing here ends the process or throws. Thread-safe: measurements on one device run one
// after another. Not to be used in the child of a fork after use in its parent.
#ifndef TF_INTEROP_CORE_C_API_H_
#define TF_INTEROP_CORE_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFI_CORE_EXPORT __attribute__((visibility("default")))

// Changes with every change of a function or a struct below; both sides have to have the same.
#define TFI_CORE_VERSION 4

// Takes a string, which is valid during the call only.
typedef void (*TfiCoreSink)(const char* text, size_t size);

// A device to measure on; lives until the process ends.
typedef struct TfiCoreDevice TfiCoreDevice;

// The fields of tf_interop::Convolution, whose enumerators are numbered in the order given.
typedef struct TfiCoreConvolution {
  int32_t kind;        // forward, backward-input, backward-filter
  int32_t dtype;       // float, half, bfloat16, double
  int32_t layout;      // NHWC, NCHW
  int32_t activation;  // none, Relu, Relu6, LeakyRelu, Elu
  int32_t has_bias;
  float leaky_relu_alpha;
  int64_t spatial_rank;
  int64_t image_depth, filter_depth, output_depth;
  int64_t stride_depth, dilation_depth;
  int64_t pad_front, pad_back;
  int64_t batch;
  int64_t image_height, image_width, image_channels;
  int64_t filter_height, filter_width;
  int64_t output_height, output_width, output_channels;
  int64_t stride_height, stride_width;
  int64_t dilation_height, dilation_width;
  int64_t pad_top, pad_bottom, pad_left, pad_right;
  int64_t group_count;
} TfiCoreConvolution;

typedef struct TfiCoreStep {
  TfiCoreConvolution convolution;
  const char* name;
  const char* algorithm;  // pinned, or ""
  int64_t lane;
} TfiCoreStep;

// See tf_interop::Lane.
typedef struct TfiCoreLane {
  int32_t priority;
  int32_t sm_count;
  int32_t merged;
} TfiCoreLane;

// See tf_interop::StageRequest. `sequential_algorithms` has `step_count` entries or is null,
// `lanes` has `lane_count`.
typedef struct TfiCoreStage {
  const TfiCoreStep* steps;
  size_t step_count;
  const char* const* sequential_algorithms;
  const TfiCoreLane* lanes;
  size_t lane_count;
} TfiCoreStage;

// See tf_interop::DeviceDescription. The last five are 0 for a device without SMs.
typedef struct TfiCoreDeviceDescription {
  int64_t memory_bytes;
  int32_t sm_count;
  int32_t sm_registers;
  int32_t sm_shared_memory_bytes;
  int32_t sm_threads;
  int32_t sm_blocks;
  int32_t sm_reserved_shared_memory_bytes;
} TfiCoreDeviceDescription;

// See tf_interop::TracedKernel.
typedef struct TfiCoreKernel {
  const char* name;
  int32_t grid[3];
  int32_t block[3];
  int32_t registers_per_thread;
  int64_t shared_memory_bytes;
  double elapsed_us;
} TfiCoreKernel;

// Takes a kernel, which is valid during the call only.
typedef void (*TfiCoreKernelSink)(const TfiCoreKernel* kernel);

// See tf_interop::MeasureOptions.
typedef struct TfiCoreMeasureOptions {
  int64_t warmup_runs;
  int64_t repetitions;
  int64_t cache_bytes;       // negative: the device's default
  int64_t head_start_bytes;  // likewise
  int64_t workspace_limit_bytes;
  double reference_limit_multiply_adds;
  uint64_t seed;
  int32_t allow_tf32;
  int32_t trace_kernels;
} TfiCoreMeasureOptions;

// See tf_interop::Measurement.
typedef struct TfiCoreMeasurement {
  double median_us;
  double spread_us;
  double relative_error;  // negative: not measured
  int64_t workspace_bytes;
  int64_t copies;
  int32_t is_deterministic;
  int32_t reduces_precision;
} TfiCoreMeasurement;

// See tf_interop::StageMeasurement.
typedef struct TfiCoreStageMeasurement {
  double concurrent_us;
  double concurrent_spread_us;
  double same_sequential_us;
  double same_sequential_spread_us;
  double sequential_us;
  double sequential_spread_us;
  int64_t workspace_bytes;
  int64_t copies;
} TfiCoreStageMeasurement;

// TFI_CORE_VERSION of the library.
TFI_CORE_EXPORT int TfiCoreVersion(void);

// Whether this CPU has the instructions that the library was compiled for. To be asked first.
TFI_CORE_EXPORT int TfiCoreCpuIsSupported(void);

// The version of libcudnn, such as "9.10.2", or "" where there is none that this library works
// with. Makes no context.
TFI_CORE_EXPORT void TfiCoreCudnnVersion(TfiCoreSink version);

// The device of a backend: "host" (each convolution on one thread) or "cudnn" (the first GPU).
// Gives the same device every time.
TFI_CORE_EXPORT int TfiCoreOpen(const char* backend, TfiCoreDevice** device, TfiCoreSink error);

// Says what the device is. Each of the sinks is called once, also with nothing.
TFI_CORE_EXPORT int TfiCoreDescribe(TfiCoreDevice* device, TfiCoreDeviceDescription* description,
                                    TfiCoreSink name, TfiCoreSink compute_capability,
                                    TfiCoreSink cudnn, TfiCoreSink cuda, TfiCoreSink error);

// Names the algorithms that may be able to compute `convolution`, each by a call of `algorithm`.
// `scope` counts the enumerators of tf_interop::AlgorithmScope.
TFI_CORE_EXPORT int TfiCoreListAlgorithms(TfiCoreDevice* device,
                                          const TfiCoreConvolution* convolution, int32_t scope,
                                          int32_t allow_tf32, TfiCoreSink algorithm,
                                          TfiCoreSink error);

// Gives the name of what TfiCoreMeasureConvolution would run for `algorithm`, which may be "", to
// `resolved`, and whether it may round float operands to `*reduces_precision`. Runs nothing.
TFI_CORE_EXPORT int TfiCoreResolveAlgorithm(TfiCoreDevice* device,
                                            const TfiCoreConvolution* convolution,
                                            const char* algorithm,
                                            const TfiCoreMeasureOptions* options,
                                            int32_t* reduces_precision, TfiCoreSink resolved,
                                            TfiCoreSink error);

// Measures one convolution. `algorithm` may be "". Gives the name of what ran to `ran`, its GPU
// kernels to `kernel` and, where those could not be traced, the reason to `trace_error`.
TFI_CORE_EXPORT int TfiCoreMeasureConvolution(
    TfiCoreDevice* device, const TfiCoreConvolution* convolution, const char* algorithm,
    const TfiCoreMeasureOptions* options, TfiCoreMeasurement* measurement, TfiCoreSink ran,
    TfiCoreKernelSink kernel, TfiCoreSink trace_error, TfiCoreSink error);

// Measures a stage. Gives the names of what ran on the lanes to `ran`, and of what ran in the
// second sequence to `ran_in_sequence`, one for each step in order. `sm_counts` has room for
// `lane_count` entries of the stage; `*sm_count_count` of them are written.
TFI_CORE_EXPORT int TfiCoreMeasureStage(TfiCoreDevice* device, const TfiCoreStage* stage,
                                        const TfiCoreMeasureOptions* options,
                                        TfiCoreStageMeasurement* measurement, int32_t* sm_counts,
                                        size_t* sm_count_count, TfiCoreSink ran,
                                        TfiCoreSink ran_in_sequence, TfiCoreSink error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TF_INTEROP_CORE_C_API_H_

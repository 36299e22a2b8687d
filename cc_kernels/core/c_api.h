// The C interface of libtf_interop_core.so, which measures without TensorFlow.
//
// Only this file declares the fields of these structs: the core's own structs derive from them, and
// Python reads the text between the two marks below from the copy of this file beside the library
// (tf_interop/measure/core.py).
//
// Functions that can fail return 0, or pass a message to `error` and return its StatusCode. Nothing
// here ends the process or throws. Thread-safe: measurements on one device run one after another. A
// forked child must not use this library if its parent has used it.
#ifndef TF_INTEROP_CORE_C_API_H_
#define TF_INTEROP_CORE_C_API_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// ---- Python reads from here: plain C, without a preprocessor.

// Changes if the meaning of anything below changes.
#define TFI_CORE_VERSION 3

// The sizes of a convolution; see tf_interop::Convolution.
typedef struct TfiSizes {
  int64_t spatial_rank;
  int64_t batch;
  int64_t image_depth, image_height, image_width, image_channels;
  int64_t filter_depth, filter_height, filter_width;
  int64_t output_depth, output_height, output_width, output_channels;
  int64_t stride_depth, stride_height, stride_width;
  int64_t dilation_depth, dilation_height, dilation_width;
  int64_t pad_front, pad_back, pad_top, pad_bottom, pad_left, pad_right;
  int64_t group_count;
} TfiSizes;

// Enumerators are numbered in the order given.
typedef struct TfiConvolution {
  TfiSizes sizes;
  int32_t kind;        // forward, backward-input, backward-filter
  int32_t dtype;       // float, half, bfloat16, double
  int32_t layout;      // NHWC, NCHW
  int32_t activation;  // its place in kActivationNames
  int32_t has_bias;
  float leaky_relu_alpha;
} TfiConvolution;

typedef struct TfiStep {
  TfiConvolution convolution;
  const char* algorithm;             // pinned, or ""
  const char* sequential_algorithm;  // in the second sequence; null in all steps: the same
  int32_t image;                     // steps with the same number share it; negative: its own
} TfiStep;

// Python's Lane, its files and the op's program use the same names.
typedef struct TfiLaneOptions {
  int32_t priority;  // as Backend::Acquire takes it
  // Whether the lane's steps, which read one image and differ only in their output channels, run as
  // one wider convolution.
  bool merged;
} TfiLaneOptions;

typedef struct TfiLane {
  TfiLaneOptions options;
  const TfiStep* steps;  // in order
  size_t step_count;
} TfiLane;

// The numbers of a device. The last five are 0 for a device without SMs.
typedef struct TfiDescription {
  int64_t memory_bytes;
  int32_t sm_count;   // on a CPU, the cores that the process may use
  int32_t registers;  // of 32 bits; this and the next three are per SM
  int32_t shared_memory_bytes;
  int32_t threads;
  int32_t blocks;
  int32_t reserved_shared_memory_bytes;  // per block, in addition to its own
} TfiDescription;

typedef struct TfiMeasureOptions {
  double warmup_ms;
  int64_t repetitions;
  int64_t workspace_limit_bytes;
  int32_t warm_caches;
  int32_t allow_tf32;
  int32_t trace_kernels;
} TfiMeasureOptions;

typedef struct TfiTime {
  double median_us;
  double spread_us;
} TfiTime;

// See tf_interop::Measurement.
typedef struct TfiMeasurement {
  TfiTime time;
  double relative_error;
  int64_t workspace_bytes;
  int32_t is_deterministic;   // whether two runs produced the same bits
  int32_t reduces_precision;  // whether float operands may be rounded
} TfiMeasurement;

// See tf_interop::StageMeasurement.
typedef struct TfiStageMeasurement {
  TfiTime concurrent;
  TfiTime same_sequential;
  TfiTime sequential;
  int64_t workspace_bytes;  // of all lanes
} TfiStageMeasurement;

typedef struct TfiKernel {
  int32_t grid[3];
  int32_t block[3];
  int32_t registers_per_thread;
  int64_t shared_memory_bytes;  // static and dynamic, per block
  double elapsed_us;
} TfiKernel;

// A device to measure on; lives until the process ends.
typedef struct TfiDevice TfiDevice;

// Their arguments are valid only during the call.
typedef void (*TfiSink)(const char* text, size_t size);
typedef void (*TfiKernelSink)(const char* name, const TfiKernel* kernel);

// Whether this CPU has the instructions that this library uses. Call this first.
int TfiCpuIsSupported(void);

// The version of libcudnn, such as "9.10.2", or "" if none is suitable. Creates no CUDA context.
void TfiCudnnVersion(TfiSink version);

// Opens a backend's device once: "host" (each convolution on one thread) or "cudnn" (the first
// GPU).
int TfiOpen(const char* backend, TfiDevice** device, TfiSink error);

// Passes the device's name, compute capability, cuDNN version and CUDA version to `text`, in this
// order; each may be empty.
int TfiDescribe(TfiDevice* device, TfiDescription* description, TfiSink text, TfiSink error);

// Passes to `algorithm` the name of each algorithm that may be able to compute `convolution`.
// `scope` is the number of an AlgorithmScope.
int TfiListAlgorithms(TfiDevice* device, const TfiConvolution* convolution, int32_t scope,
                      int32_t allow_tf32, TfiSink algorithm, TfiSink error);

// Passes to `resolved` the name of the algorithm that TfiMeasureConvolution would run for
// `algorithm`, which may be "". Sets `*reduces_precision` if it may round float operands. Runs
// nothing.
int TfiResolveAlgorithm(TfiDevice* device, const TfiConvolution* convolution, const char* algorithm,
                        const TfiMeasureOptions* options, int32_t* reduces_precision,
                        TfiSink resolved, TfiSink error);

// Measures one convolution. `algorithm` may be "". Passes the algorithm's name to `ran`, and its
// GPU kernels to `kernel` or, if they could not be traced, the reason to `trace_error`.
int TfiMeasureConvolution(TfiDevice* device, const TfiConvolution* convolution,
                          const char* algorithm, const TfiMeasureOptions* options,
                          TfiMeasurement* measurement, TfiSink ran, TfiKernelSink kernel,
                          TfiSink trace_error, TfiSink error);

// Measures a stage. For each step, lane after lane, passes the algorithm on the lanes to `ran` and
// the one in the second sequence to `ran_in_sequence`.
int TfiMeasureStage(TfiDevice* device, const TfiLane* lanes, size_t lane_count,
                    const TfiMeasureOptions* options, TfiStageMeasurement* measurement, TfiSink ran,
                    TfiSink ran_in_sequence, TfiSink error);

// ---- Python reads to here.

#pragma GCC visibility pop
#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TF_INTEROP_CORE_C_API_H_

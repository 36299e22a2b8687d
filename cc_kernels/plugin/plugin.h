// The C interface between the library and the Python package: registering the graph-optimizer
// plugin, and the Python pass that it calls while Grappler runs. Python reaches it with ctypes.
#ifndef TF_INTEROP_PLUGIN_PLUGIN_H_
#define TF_INTEROP_PLUGIN_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFI_EXPORT __attribute__((visibility("default")))

// One call of the plugin by Grappler; valid until the pass returns. Where Grappler has stopped
// waiting for the pass, the names are still there, and the rest tells that it is too late.
typedef struct TfiGraph TfiGraph;

// Rewrites a graph. Returns 1 after it has handed over a new graph with TfiSetResult, 0 if the
// graph stays as it is. Called from several threads at once, also from ones that have never run
// Python. Must not throw.
typedef int (*TfiPass)(TfiGraph* graph);

// Whether the calling thread holds Python's interpreter (PyGILState_Check).
typedef int (*TfiIsInterpreterHeld)();

// Takes `size` bytes at `data`, which stay the callee's for the call only.
typedef void (*TfiSink)(const void* data, size_t size);

// Registers the plugin for a device type, "CPU" or "GPU". Returns NULL, or why not as a string
// that stays valid. Does nothing, and succeeds, where it is registered already.
TFI_EXPORT const char* TfiRegisterPlugin(const char* device_type);

// Sets the pass; NULL turns it off.
//
// The pass is called on a thread of its own, while the one that TensorFlow came on waits. Python
// runs signal handlers, which may raise, on its main thread only: so an interrupt raises where
// TensorFlow returns, as it does without the plugin, and not inside the pass. Where TensorFlow's
// caller holds the interpreter, which that thread would wait for, the pass is called on the
// caller's.
//
// The caller waits five seconds for the pass to get the interpreter, and then five more than
// `time_limit_s` for its end. Then the graph stays as it is, and the pass goes on alone.
TFI_EXPORT void TfiSetPass(TfiPass pass, TfiIsInterpreterHeld is_interpreter_held,
                           double time_limit_s);

// What Grappler handed over: a serialized GraphDef, the device type that the plugin was called
// for, the names of the nodes that have to stay, and of those among them that the graph is run for.
// Each name has a line feed after it. A name that has to stay and is no fetch may be fed.
// TfiGraphData returns NULL where it is too late.
TFI_EXPORT const void* TfiGraphData(TfiGraph* graph);
TFI_EXPORT size_t TfiGraphSize(const TfiGraph* graph);
TFI_EXPORT const char* TfiGraphDeviceType(const TfiGraph* graph);
TFI_EXPORT const char* TfiGraphNodesToPreserve(const TfiGraph* graph);
TFI_EXPORT const char* TfiGraphFetches(const TfiGraph* graph);

// Gives the serialized OpInfo::TensorProperties of every output of a node to `sink`, in order.
// Shapes are inferred for the whole graph on the first call, which takes long. Returns the number
// of outputs, or -1 where TensorFlow does not know the node, or it is too late.
TFI_EXPORT int TfiOutputProperties(TfiGraph* graph, const char* node, TfiSink sink);

// Hands over the new graph; the bytes are copied. Returns 1, or 0 if it is too late.
TFI_EXPORT int TfiSetResult(TfiGraph* graph, const void* data, size_t size);

// What ran so far, a call of `sink` for each: "<counter> <device> <n>" for each device, such as
// "GPU:0", and for each number of `Counters` (core/counters.h) by its name, then "fallback <device>
// <n> <reason>" and "refused_lane_options <device> <n> <reason>" for each reason. Reasons quote
// other libraries, and may hold line feeds and bytes that are no text.
TFI_EXPORT void TfiReadCounters(TfiSink sink);

// Records what runs when in calls 1 to `calls` of each op from now on; 0 ends that.
TFI_EXPORT void TfiRecordTimeline(int calls);

// What was recorded and is over, a call of `sink` for each span. Its lines are: "stage", "lane" or
// "thread"; the number of the lane or thread; the name of the op's node; the number of the call;
// the name of what ran; its algorithm; when it began and ended, in nanoseconds of a steady clock.
TFI_EXPORT void TfiReadTimeline(TfiSink sink);

// Limits the bytes that the workspaces of one stage take together; a negative number ends the
// limit. Holds for stages that run from now on, on all devices.
TFI_EXPORT void TfiSetWorkspaceLimit(int64_t bytes);

// Gives the serialized NodeDef of the kernel that a step of a TfInterop>Unit runs for a node, which
// is the node or what cc_kernels/tf/stock_kernel.h makes of it. Returns 1, or 0 if the bytes are
// no NodeDef.
TFI_EXPORT int TfiRenameForOneDnn(const void* node, size_t size, int has_constant_filter,
                                  TfiSink sink);

// Whether this CPU has the instructions that the library was compiled for.
TFI_EXPORT int TfiCpuIsSupported(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TF_INTEROP_PLUGIN_PLUGIN_H_

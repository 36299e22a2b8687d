// The library's C interface, which the Python package calls with ctypes: the graph-optimizer plugin
// and its Python pass, counters, timelines and limits.
#ifndef TF_INTEROP_PLUGIN_PLUGIN_H_
#define TF_INTEROP_PLUGIN_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFI_EXPORT __attribute__((visibility("default")))

// A graph that TensorFlow hands to the plugin: Grappler's, or the body of a function that XLA
// compiles. It and the strings passed with it are valid until the pass returns. Once TensorFlow has
// stopped waiting for the pass, all functions of a graph fail.
typedef struct TfiGraph TfiGraph;

// Rewrites a graph, given the device type, whether XLA compiles it, the name of its function (in a
// Session, any other text), the names of the nodes that must stay, and those among them that are
// fetched. A line feed ends each node's name. Nodes that must stay and are not fetched may be fed.
// Returns 1 after TfiSetResult, or 0 if the graph stays unchanged. Called from several threads at
// once, even from some that have never run Python. Must not throw.
typedef int (*TfiPass)(TfiGraph* graph, const char* device_type, int is_compiled,
                       const char* function, const char* nodes_to_preserve, const char* fetches);

// Whether the calling thread holds Python's interpreter (PyGILState_Check).
typedef int (*TfiIsInterpreterHeld)();

// Receives `size` bytes at `data`, which are valid only during the call.
typedef void (*TfiSink)(const void* data, size_t size);

// Registers the plugin for a device type, "CPU" or "GPU", unless it is registered already. The
// first time, functions that XLA compiles are handed over from then on, on both
// (compiled_functions.h). Returns NULL, or an error, which stays valid until the thread's next
// call.
TFI_EXPORT const char* TfiRegisterPlugin(const char* device_type);

// Sets the pass; NULL turns it off.
//
// The pass runs on its own thread while TensorFlow's thread waits. Python runs signal handlers,
// which may raise, only on its main thread. So an interrupt raises where TensorFlow returns, as
// without the plugin, and not inside the pass. If TensorFlow's caller holds the interpreter, the
// pass runs on the caller's thread, because its own would wait for the interpreter.
//
// The caller waits five seconds for the pass to get the interpreter, then `time_limit_s` plus five
// seconds for it to end. After that the graph stays unchanged, and the pass runs on alone.
//
// It gets graphs with convolutions; if `takes_products` is not 0, also others with matrix products.
TFI_EXPORT void TfiSetPass(TfiPass pass, TfiIsInterpreterHeld is_interpreter_held,
                           double time_limit_s, int takes_products);

// Passes the serialized GraphDef to `sink`. Returns 1, or 0 if it is too late.
TFI_EXPORT int TfiGraphData(TfiGraph* graph, TfiSink sink);

// Passes the serialized OpInfo::TensorProperties of each output of a node, in order, to `sink`. The
// first call infers the shapes of the whole graph, which is slow. Returns the number of outputs, or
// -1 if TensorFlow does not know the node or it is too late.
TFI_EXPORT int TfiOutputProperties(TfiGraph* graph, const char* node, TfiSink sink);

// Sets the new graph, whose bytes are copied. Returns 1, or 0 if it is too late.
TFI_EXPORT int TfiSetResult(TfiGraph* graph, const void* data, size_t size);

// Passes the counters (core/counters.h) of each device to `sink`, one by one: "<counter> <device>
// <n> <reason>", with a device such as "GPU:0". Only "fallback" has reasons, which quote other
// libraries and may contain any bytes.
TFI_EXPORT void TfiReadCounters(TfiSink sink);

// Records a timeline of calls 1 to `calls` of each op from now on; 0 stops recording.
TFI_EXPORT void TfiRecordTimeline(int calls);

// Passes each recorded span that is over to `sink`. Its lines are: "stage", "lane" or "thread"; the
// number of the lane or thread; the node's name; the number of the call; the names of the
// convolutions or operations; the algorithm; begin and end, in nanoseconds of a steady clock.
TFI_EXPORT void TfiReadTimeline(TfiSink sink);

// Passes what the units of each graph that time themselves found out, for each sizes of its input.
// The lines are: the graph; the sizes; the way of the next step; whether ways are tried now; the
// share of the time of timed steps that was lost to slower ways; and for each way its name, the
// median of its steps in us (0: not timed), their count, and the time of a simulated step in us (0:
// there was none).
TFI_EXPORT void TfiReadSelfTimings(TfiSink sink);

// The same for each stage that times itself: its node's name in place of the graph, calls in place
// of steps.
TFI_EXPORT void TfiReadStageTimings(TfiSink sink);

// Turns calls of TensorFlow's kernels (xla/kernel_call.h) on or off, for functions that XLA
// compiles from now on: depthwise convolutions on a CPU, and stages. While it is off, functions
// that XLA compiles are not handed over.
TFI_EXPORT void TfiSetXlaCalls(int is_on);

// Passes the six numbers of XlaCallCounts (xla/kernel_call.h), in order, separated by spaces.
TFI_EXPORT void TfiReadXlaCalls(TfiSink sink);

// Limits the total bytes of a stage's workspaces from now on, on all devices; a negative number
// lifts the limit.
TFI_EXPORT void TfiSetWorkspaceLimit(int64_t bytes);

// Whether this CPU has the instructions that the library was compiled for.
TFI_EXPORT int TfiCpuIsSupported(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TF_INTEROP_PLUGIN_PLUGIN_H_

// Hands the bodies of functions that XLA compiles (jit_compile=True) to the pass.
//
// Grappler gets such a function without its body. Two registries of TensorFlow see the bodies: the
// graph optimization passes, for calls in other functions and in Sessions, and the rewrites of
// eager ops, for calls from Python. In both, the function and the functions that it calls are
// copied with new bodies under new names, and the call is pointed at the copy. XLA caches a
// compiled program by its function's name, so both the program of the copy and that of the original
// stay valid when the plugin is turned on or off.
//
//   before                                     after
//   call (f: step)                             call (f: step__tf_interop_1f…)
//   step: … Conv2D, Conv2D …                   step__tf_interop_1f…: … ConvStage …
//
// While the pass or calls in compiled functions (xla/kernel_call.h) are off, nothing is changed.
#ifndef TF_INTEROP_PLUGIN_COMPILED_FUNCTIONS_H_
#define TF_INTEROP_PLUGIN_COMPILED_FUNCTIONS_H_

namespace tf_interop {

// From now on, also of calls that ran before. May be called again.
void HandOverCompiledFunctions();

}  // namespace tf_interop

#endif  // TF_INTEROP_PLUGIN_COMPILED_FUNCTIONS_H_

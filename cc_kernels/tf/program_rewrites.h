// Rewrites of a unit's program that replace steps by faster ones of this library.
//
// Operands and `results` then name the steps that are left. Whatever is not well-formed stays as it
// is.
#ifndef TF_INTEROP_TF_PROGRAM_REWRITES_H_
#define TF_INTEROP_TF_PROGRAM_REWRITES_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

// Joins float32 concatenations with the normalizations after them, if nothing else needs the
// concatenation.
void JoinConcatenations(std::vector<tensorflow::NodeDef>* steps, std::vector<std::string>* results);

// Joins steps in float32 and bfloat16 that nothing but another one of them reads with those that
// read them, as nodes of kElementwiseOp.
void JoinElementwise(std::vector<tensorflow::NodeDef>* steps, std::vector<std::string>* results);

// Gives float32 steps of the op LRN, if their `beta` is 0.5, 0.75 or 1, the op of this library.
void ReplaceResponseNormalizations(std::vector<tensorflow::NodeDef>* steps);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_PROGRAM_REWRITES_H_

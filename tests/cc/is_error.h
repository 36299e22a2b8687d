// Assertions on errors: the class, and the words that tell what and where.
#ifndef TF_INTEROP_TESTS_CC_IS_ERROR_H_
#define TF_INTEROP_TESTS_CC_IS_ERROR_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cc_kernels/core/status.h"

namespace tf_interop {

inline testing::AssertionResult IsError(const Status& status, StatusCode code,
                                        const std::vector<std::string>& parts) {
  testing::AssertionResult wrong = testing::AssertionFailure();
  wrong << "status " << static_cast<int>(status.code()) << ": " << status.message();
  if (status.code() != code) return wrong;
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos) return wrong << "\nlacks: " << part;
  }
  return testing::AssertionSuccess();
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_IS_ERROR_H_

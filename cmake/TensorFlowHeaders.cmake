# Finds the TensorFlow of the Python that runs the build, without importing it, which takes seconds.
#
# Sets TENSORFLOW_DIR, TENSORFLOW_INCLUDE_DIR and TENSORFLOW_VERSION. The core alone needs only its
# Eigen headers; if TF_INTEROP_EIGEN_INCLUDE_DIR names their folder, it builds without TensorFlow.

set(TF_INTEROP_EIGEN_INCLUDE_DIR "" CACHE PATH
    "Folder with Eigen's headers, to build the core without TensorFlow")

if(TF_INTEROP_EIGEN_INCLUDE_DIR AND NOT TF_INTEROP_BUILD_LIBRARY)
  set(TENSORFLOW_DIR "")
  set(TENSORFLOW_INCLUDE_DIR "${TF_INTEROP_EIGEN_INCLUDE_DIR}")
  return()
endif()

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_tensorflow.py"
  OUTPUT_VARIABLE _found
  RESULT_VARIABLE _result)
if(NOT _result EQUAL 0)
  message(FATAL_ERROR
    "${Python_EXECUTABLE} has no TensorFlow 2.20 or 2.21. Install it "
    "('pip install tensorflow==2.21.* scikit-build-core cmake ninja') and build with "
    "'pip install --no-build-isolation .', so that the library is built for the TensorFlow that it "
    "will run with.")
endif()
list(GET _found 0 TENSORFLOW_DIR)
list(GET _found 1 TENSORFLOW_VERSION)
set(TENSORFLOW_INCLUDE_DIR "${TENSORFLOW_DIR}/include")
message(STATUS "TensorFlow ${TENSORFLOW_VERSION}: ${TENSORFLOW_DIR}")

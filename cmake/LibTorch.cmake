# LibTorch 2.11.0 as hand-made imported targets over the files of the Python package `torch`: find_package(Torch) would
# demand a CUDA toolkit and override the architectures. scripts/libtorch.sh decides where it is (TITAN_LIBTORCH, else
# an installed Python torch of that version, else the shared cache, filled when needed) and checks the version.
# Gives: titan_libtorch and, in a CUDA build, titan_libtorch_cuda, the targets to link; TITAN_LIBTORCH_FOUND, the folder that holds torch/ and nvidia/.
set(TITAN_LIBTORCH "" CACHE PATH "A Python site-packages folder that holds torch, or that torch folder; empty: found")

if(NOT TITAN_LIBTORCH AND NOT "$ENV{TITAN_LIBTORCH}" STREQUAL "")
  # Kept, because ninja may run CMake again from a shell that does not set the variable.
  set_property(CACHE TITAN_LIBTORCH PROPERTY VALUE "$ENV{TITAN_LIBTORCH}")
endif()
set(kind --cpu)
if(TITAN_WITH_CUDA)
  set(kind --cuda)
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env "TITAN_LIBTORCH=${TITAN_LIBTORCH}"
    ${CMAKE_CURRENT_SOURCE_DIR}/scripts/libtorch.sh ${kind}
  RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE site)
if(failed)
  message(FATAL_ERROR "LibTorch was not found; the reason is above (from scripts/libtorch.sh ${kind}).")
endif()
set(TITAN_LIBTORCH_FOUND "${site}" CACHE INTERNAL "Folder that holds torch/ and nvidia/")

# torch's own libraries name their neighbours relative to themselves; these folders are what the linker needs to follow
# them and what the programs of the build tree get as run path.
file(GLOB nvidia_folders LIST_DIRECTORIES true "${site}/nvidia/*/lib")
list(APPEND CMAKE_BUILD_RPATH "${site}/torch/lib" ${nvidia_folders})

# titan_libtorch_library(name file): imported target titan_libtorch::name for one shared library.
function(titan_libtorch_library name file)
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "${file} is missing: ${site} holds no complete Python torch.")
  endif()
  add_library(titan_libtorch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(titan_libtorch::${name} PROPERTIES IMPORTED_LOCATION "${file}")
endfunction()

set(libraries c10 torch_cpu gomp)
titan_libtorch_library(c10 "${site}/torch/lib/libc10.so")
titan_libtorch_library(gomp "${site}/torch/lib/libgomp.so.1")
titan_libtorch_library(torch_cpu "${site}/torch/lib/libtorch_cpu.so")

add_library(titan_libtorch INTERFACE)
target_compile_definitions(titan_libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
target_include_directories(titan_libtorch SYSTEM INTERFACE
  "${site}/torch/include" "${site}/torch/include/torch/csrc/api/include")
# torch's inline checks name their file: without the folder of the machine that built it.
target_compile_options(titan_libtorch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${site}/=>")
# at::parallel_for lives in a header: compiled without OpenMP it runs on one thread. torch brings the runtime library.
target_compile_options(titan_libtorch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
if(TITAN_WITH_CUDA)
  set(cuda_libraries c10_cuda torch_cuda cudart)
  titan_libtorch_library(c10_cuda "${site}/torch/lib/libc10_cuda.so")
  titan_libtorch_library(torch_cuda "${site}/torch/lib/libtorch_cuda.so")
  titan_libtorch_library(cudart "${site}/nvidia/cu13/lib/libcudart.so.13")
  add_library(titan_libtorch_cuda INTERFACE)
  # NCCL's header decides the layout of ProcessGroupNCCL::Options: it must be the one libtorch_cuda was built with.
  target_compile_definitions(titan_libtorch_cuda INTERFACE USE_C10D_NCCL)
  target_include_directories(titan_libtorch_cuda SYSTEM INTERFACE
    "${site}/nvidia/nccl/include" "${site}/nvidia/cu13/include")
  # What Python installs lacks the folder crt/ that the runtime's headers include: the compiler's own headers come last.
  foreach(folder IN LISTS CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES)
    target_compile_options(titan_libtorch_cuda INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${folder}\">")
  endforeach()
endif()

# The libraries register their operators when they are loaded, so none may be dropped for want of a used symbol.
# DT_RPATH (not DT_RUNPATH) keeps a stray LD_LIBRARY_PATH from mixing two versions of torch in the build tree.
function(titan_link_whole target)
  list(TRANSFORM ARGN PREPEND titan_libtorch:: OUTPUT_VARIABLE whole)
  target_link_libraries(${target} INTERFACE "-Wl,--push-state,--no-as-needed" ${whole} "-Wl,--pop-state")
endfunction()
titan_link_whole(titan_libtorch ${libraries})
if(TITAN_WITH_CUDA)
  titan_link_whole(titan_libtorch_cuda ${cuda_libraries})
  target_link_libraries(titan_libtorch_cuda INTERFACE titan_libtorch)
endif()
target_link_options(titan_libtorch INTERFACE "LINKER:--disable-new-dtags")
message(STATUS "titan: LibTorch in ${site}")

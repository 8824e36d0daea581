# One library for the parts that know no tensors (each its own), one for all parts that do; sources are found by folder, so a
# new file needs no edit here. Which part may include which is written in docs/architecture.md and checked by a test.
function(titan_part name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cpp)
  if(sources)
    add_library(titan_${name} STATIC ${sources})
    titan_compile_together(titan_${name})
    target_link_libraries(titan_${name} PUBLIC titan_compiler ${ARGN})
  else()
    add_library(titan_${name} INTERFACE)
    target_link_libraries(titan_${name} INTERFACE titan_compiler ${ARGN})
  endif()
endfunction()

# A file as a string of the program: `constant` of generated/`header`, which the source `user` includes.
function(titan_embed file constant header user)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  file(READ ${file} text)
  file(CONFIGURE OUTPUT generated/${header} @ONLY CONTENT
    "// Of ${file}.\n#pragma once\ninline constexpr const char* ${constant} = R\"embedded(@text@)embedded\";\n")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/${user} PROPERTIES
    INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/generated)
endfunction()

titan_part(base fmt::fmt spdlog::spdlog Threads::Threads)
target_include_directories(titan_base SYSTEM PRIVATE ${TITAN_XXHASH_INCLUDE})
titan_part(schedule titan_base)
titan_part(config titan_base nlohmann_json::nlohmann_json CLI11::CLI11)
titan_part(text titan_config nlohmann_json::nlohmann_json ${TITAN_PCRE2} ${TITAN_UTF8PROC})
titan_part(corpus titan_text ${TITAN_ZSTD} ZLIB::ZLIB ${CMAKE_DL_LIBS})
titan_part(stream titan_corpus)
target_include_directories(titan_corpus SYSTEM PRIVATE ${TITAN_XXHASH_INCLUDE})
titan_part(plan titan_config titan_schedule)
titan_part(job titan_config titan_stream titan_plan)
titan_part(estimate titan_job)
titan_embed(src/estimate/hardware.toml kHardwareToml hardware_toml.h src/estimate/hardware.cpp)
# Plain loops over ids: -O2 of GCC 12 makes no vectors of loops whose length it does not know.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/corpus/widen.cpp PROPERTIES COMPILE_OPTIONS -O3)

# The program: commands that know no tensors, and `main`, which opens libtitan.so for all others.
titan_part(cli titan_estimate CLI11::CLI11)
add_executable(titan_train src/app/main.cpp)
target_link_libraries(titan_train PRIVATE titan_cli ${CMAKE_DL_LIBS})

if(TITAN_TORCH)
  # Everything that knows tensors shares one precompiled header of what its files include anyway: torch's headers cost 12 s
  # a file without it. Nothing relies on it being there; clang-tidy reads the sources without it. No path of this checkout
  # is in it, so that checkouts share ccache's results.
  set(TITAN_TENSOR_PARTS gpu distributed kernels ops model parallel optimize checkpoint report train tools)
  set(sources)
  foreach(part ${TITAN_TENSOR_PARTS})
    file(GLOB_RECURSE part_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${part}/*.cpp)
    list(APPEND sources ${part_sources})
  endforeach()
  if(TITAN_WITH_CUDA)
    # Apart, because they know no tensors: what tests and measures them alone does without LibTorch.
    file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/*.cu)
    add_library(titan_gpu_kernels STATIC ${cuda_sources})
    target_link_libraries(titan_gpu_kernels PUBLIC titan_compiler titan_libtorch::cudart)
    set_target_properties(titan_gpu_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
    # The optimizers' products and sums are rounded one by one, as by these kernels' host build: both give the same bits.
    file(GLOB adam_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/*adam.cu)
    set_source_files_properties(${adam_sources} PROPERTIES COMPILE_OPTIONS -fmad=false)
  endif()
  add_library(titan_core STATIC ${sources})
  target_link_libraries(titan_core PUBLIC titan_estimate titan_libtorch
    ${TITAN_LIBDEFLATE})
  target_include_directories(titan_core SYSTEM PRIVATE ${TITAN_XXHASH_INCLUDE})
  foreach(header ATen/ATen.h torch/csrc/autograd/engine.h torch/csrc/autograd/function.h
          torch/csrc/autograd/functions/utils.h string vector)
    target_precompile_headers(titan_core PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
  endforeach()
  titan_embed(src/report/page.html kPageHtml page_html.h src/report/page.cpp)
  # Plain loops over memory: vectors need -O3 and a square root that does not set errno.
  file(GLOB_RECURSE loops CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*/cpu_*.cpp)
  set_source_files_properties(${loops} PROPERTIES
    SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math")
  # LibTorch carries Gloo without its headers; the one file that makes a Gloo group sees declarations of our own.
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/distributed/gloo_communicator.cpp PROPERTIES
    INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/src/distributed/gloo_stub)
  titan_compile_together(titan_core)
  if(TITAN_WITH_CUDA)
    # All that knows CUDA, opened at run time (titan/gpu/cuda.h). What it uses of the other parts is the program's own.
    file(GLOB cuda_library_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/*.cpp)
    add_library(titan_cuda SHARED ${cuda_library_sources})
    target_link_libraries(titan_cuda PRIVATE titan_compiler titan_gpu_kernels titan_libtorch_cuda fmt::fmt spdlog::spdlog)
    string(JOIN "," architectures ${CMAKE_CUDA_ARCHITECTURES})
    target_compile_definitions(titan_cuda PRIVATE "TITAN_GPU_ARCHITECTURES=\"${architectures}\"")
    titan_compile_together(titan_cuda)
    target_link_options(titan_core INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:LINKER:--dynamic-list=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.list>)
  endif()
endif()

if(TITAN_TORCH)
  # What libtitan.so holds, for tests that run it in their own process.
  file(GLOB app_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/app/*.cpp)
  list(FILTER app_sources EXCLUDE REGEX "/(main|library)\\.cpp$")
  add_library(titan_app STATIC ${app_sources})
  target_link_libraries(titan_app PUBLIC titan_core titan_cli)
  target_precompile_headers(titan_app REUSE_FROM titan_core)
  titan_compile_together(titan_app)
  include(Version)
  add_dependencies(titan_app titan_commit)
  set(kernels "none: built for the CPU only")
  if(TITAN_WITH_CUDA)
    list(TRANSFORM cuda_sources REPLACE ".*/(.*)\\.cu$" "\\1" OUTPUT_VARIABLE kernels)
    list(REMOVE_ITEM kernels launch)
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^([0-9]+[a-z]?).*" "sm_\\1" OUTPUT_VARIABLE architectures)
    string(JOIN ", " kernels ${kernels})
    string(JOIN ", " architectures ${architectures})
    string(APPEND kernels " for ${architectures}")
  endif()
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/app/version.cpp PROPERTIES
    COMPILE_DEFINITIONS "TITAN_VERSION=\"${PROJECT_VERSION}\";TITAN_KERNELS=\"${kernels}\""
    INCLUDE_DIRECTORIES ${TITAN_GENERATED})
  add_library(titan SHARED src/app/library.cpp)
  target_link_libraries(titan PRIVATE titan_app)
  add_dependencies(titan_train titan)
  # With what it opens where a GPU is: a machine without one need not compile that to train.
  add_custom_target(titan_program DEPENDS titan_train)
  if(TITAN_WITH_CUDA)
    add_dependencies(titan_program titan_cuda)
    set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/gpu/find.cpp PROPERTIES COMPILE_DEFINITIONS TITAN_FOR_CUDA)
  endif()
endif()

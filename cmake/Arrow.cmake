# libtitan_parquet.so, which reads Parquet files with Arrow C++ 26.0.1: the libraries in Python's package pyarrow, found
# or fetched by scripts/arrow.sh. Built only with TITAN_PARQUET, because nothing else needs Arrow's 55 MB. The target
# titan_train then depends on it: both are always of the same sources.
if(NOT TITAN_PARQUET)
  return()
endif()
execute_process(COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/scripts/arrow.sh
  RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE arrow)
if(failed)
  message(FATAL_ERROR "Arrow was not found; the reason is above (from scripts/arrow.sh).")
endif()
set(TITAN_ARROW_FOUND "${arrow}" CACHE INTERNAL "Folder that holds Arrow's pyarrow/")
set(TITAN_ARROW_LIBRARIES)
foreach(name arrow parquet)
  file(GLOB library "${arrow}/pyarrow/lib${name}.so.[0-9]*")
  list(GET library 0 library)
  list(APPEND TITAN_ARROW_LIBRARIES "${library}")
endforeach()

file(GLOB parquet_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/parquet/*.cpp)
add_library(titan_parquet SHARED ${parquet_sources})
target_include_directories(titan_parquet SYSTEM PRIVATE "${arrow}/pyarrow/include")
target_link_libraries(titan_parquet PRIVATE titan_compiler fmt::fmt ${TITAN_ARROW_LIBRARIES})
# Hidden, because the program and LibTorch have symbols of their own in the same process. LibTorch's folders, which are
# the run path of everything else in the build tree, have nothing for it.
set_target_properties(titan_parquet PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  BUILD_RPATH "${arrow}/pyarrow")
target_compile_options(titan_parquet PRIVATE "-fmacro-prefix-map=${arrow}/=")
add_dependencies(titan_train titan_parquet)
message(STATUS "titan: Parquet with Arrow in ${arrow}")

# Unity build: LibTorch headers cost 5 of 9 s per file in template instantiation, precompiled or not. TITAN_UNITY=OFF
# compiles each file alone, for work on a few of them.
option(TITAN_UNITY "Compile several files of a folder together" ON)
set(TITAN_FILES_TOGETHER 8)

# titan_compile_together(target): files of one folder, in alphabetical order, TITAN_FILES_TOGETHER at a time; files with
# options of their own are compiled alone.
function(titan_compile_together target)
  if(NOT TITAN_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(SORT sources)
  foreach(source IN LISTS sources)
    if(NOT source MATCHES "\\.cpp$")
      continue()
    endif()
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "${folder}" key)
    if(NOT DEFINED number_${key})
      set(number_${key} 0)
    endif()
    math(EXPR group "${number_${key}} / ${TITAN_FILES_TOGETHER}")
    math(EXPR number_${key} "${number_${key}} + 1")
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER "${name}_${group}" name)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # In a unity file each source keeps its own path in __FILE__, as when compiled alone.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)
  # GCC warns about types of anonymous namespaces that come from included .cpp files.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()

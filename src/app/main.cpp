#include "titan/app/program.h"

int main(int argc, char** argv) { return titan::end_process(titan::run_program({argv + 1, argv + argc})); }

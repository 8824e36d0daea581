#include "titan/app/program.h"

int main(int argc, char** argv) { return titan::run_program({argv + 1, argv + argc}); }

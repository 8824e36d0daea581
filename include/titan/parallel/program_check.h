// Proves programs before anything starts: weights are there when they are used, no slot is overwritten in use, and
// gradients are complete before their step. For all ranks of a mesh: each message is received, and all members of a
// communicator make the same calls in the same order. A run proves its own rank; rank 0 of a job of at most 64 ranks
// proves the mesh (train/build.cpp), tests do it for every row of the layout matrices.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "titan/parallel/program.h"

namespace titan {

/// What is wrong with one rank's programs, which run in this order from `programs[0].entry` on and end with a step: the
/// first problem, with program, position (from 1) and instruction; empty: none.
std::string program_problem(const Plan& plan, std::span<const Program> programs);

/// The programs of a rank in an order that has each of them start from every state it can meet in a run: after the
/// start, a pass, a step and a validation.
std::vector<Program> checked_programs(const Plan& plan, bool graphs = false);

/// The programs that one rank of a mesh runs.
struct RankPrograms {
  const Plan* plan = nullptr;  // its place says which rank
  std::span<const Program> programs;
};

/// Checks the programs of all ranks of a mesh, given in rank order. Returns the first collective or message in which
/// two ranks differ, or, in a deadlock, what each rank waits for; empty if there is no problem. Every collective is
/// assumed to block until all members have called it.
std::string mesh_problem(std::span<const RankPrograms> ranks);

}  // namespace titan

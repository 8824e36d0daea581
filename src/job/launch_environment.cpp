#include "titan/job/launch_environment.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {
namespace {

// Above the ephemeral ports of Linux (32768 to 60999), which connections of other programs take.
constexpr uint64_t kFirstDerivedPort = 61440;
constexpr uint64_t kDerivedPorts = 4096;  // up to 65535, the last port
constexpr uint64_t kPortAttempts = 9;
constexpr const char* kLoopback = "127.0.0.1";
/// Slurm numbers its shells and daemons from here on; they are not steps that srun was asked to run.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

[[noreturn]] void refuse(const std::string& message) { throw Error(ExitCode::launcher, message); }

uint16_t parse_port(std::string_view text, std::string_view from) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535) {
    refuse(fmt::format("{} = \"{}\" is not a port; give a number from 1 to 65535", from, text));
  }
  return static_cast<uint16_t>(port);
}

/// "host:port", "[::1]:port".
RendezvousEndpoint parse_master(const std::string& master) {
  const size_t colon = master.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    refuse(fmt::format("comm.master = \"{}\" has no port; write host:port", master));
  }
  std::string host = master.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {RendezvousEndpoint::Kind::rank_zero,
          host,
          {parse_port(std::string_view(master).substr(colon + 1), "comm.master")},
          "master"};
}

/// Rendezvous for launchers without a store of their own: MASTER_ADDR and MASTER_PORT if the user set them; else this
/// host if it is the only one. `job` distinguishes the run from others on the machine.
RendezvousEndpoint rendezvous_endpoint(const EnvironmentVariables& variables, const Launch& launch,
                                       const std::string& job, uint64_t port_key) {
  RendezvousEndpoint rendezvous{
      RendezvousEndpoint::Kind::rank_zero, {}, derived_ports(port_key), launch.launcher + " " + job};
  if (const auto port = variables.text("MASTER_PORT")) rendezvous.ports = {parse_port(*port, "MASTER_PORT")};
  if (const auto address = variables.text("MASTER_ADDR")) {
    rendezvous.host = *address;
  } else if (launch.local_size == launch.size) {
    rendezvous.host = kLoopback;
  }
  return rendezvous;
}

/// Used for launchers that name no job. The ranks of one host are children of one process. Ranks of several hosts share
/// only an address and a port, which the user must set.
void set_endpoint_without_job(const EnvironmentVariables& variables, const LaunchContext& context, Launch& launch) {
  const bool one_host = launch.local_size == launch.size;
  const std::string job = one_host ? fmt::format("of process {}", context.launcher_process()) : "on several hosts";
  launch.rendezvous = rendezvous_endpoint(variables, launch, job, name_key(job));
  if (one_host || launch.size == 1 || (variables.has("MASTER_ADDR") && variables.has("MASTER_PORT"))) return;
  refuse(fmt::format(
      "{} started {} ranks and names no job by which they could find each other; set MASTER_ADDR to the host "
      "of rank 0 and MASTER_PORT to a free port there (mpiexec -genv MASTER_ADDR host -genv MASTER_PORT "
      "29500 …)",
      launch.launcher, launch.size));
}

void require_host(const Launch& launch) {
  if (!launch.rendezvous.host.empty() || launch.size == 1) return;
  refuse(
      fmt::format("{} ranks on several hosts, and {} does not say which host is that of rank 0; set MASTER_ADDR to it "
                  "(mpirun -x MASTER_ADDR=host …)",
                  launch.size, launch.launcher));
}

std::optional<Launch> from_dry_run(const CommSection& comm, const EnvironmentVariables& variables) {
  if (comm.mode != "fake_backend") return std::nullopt;
  Launch launch;
  launch.launcher = "comm.mode = \"fake_backend\"";
  launch.fake = true;
  launch.rank = comm.rank ? *comm.rank : variables.number_or("RANK", 0);
  launch.size = comm.world_size ? *comm.world_size : variables.number_or("WORLD_SIZE", 0);
  if (launch.size == 0) {
    refuse(
        "comm.mode = \"fake_backend\" needs the number of ranks to stand for: give comm.world_size, or start it as "
        "NGPU=32 COMM_MODE=fake_backend scripts/train.sh");
  }
  return launch;
}

std::optional<Launch> from_options(const CommSection& comm, const EnvironmentVariables& variables) {
  if (!comm.rank || !comm.world_size || !comm.master) return std::nullopt;
  Launch launch{.launcher = "comm.rank", .rank = *comm.rank, .size = *comm.world_size};
  launch.local_rank = variables.number("LOCAL_RANK");
  launch.local_size = variables.number("LOCAL_WORLD_SIZE");
  launch.rendezvous = parse_master(*comm.master);
  return launch;
}

void refuse_no_ranks(const std::optional<int64_t>& world_size) {
  if (world_size != 0) return;
  refuse(
      "WORLD_SIZE = 0 is not a number of ranks; set it to the number of processes that the run has, or unset RANK and "
      "WORLD_SIZE to train with this process alone");
}

std::optional<Launch> from_torchrun(const EnvironmentVariables& variables) {
  const std::optional<int64_t> rank = variables.number("RANK");
  const std::optional<int64_t> size = variables.number("WORLD_SIZE");
  if (!rank || !size) return std::nullopt;
  refuse_no_ranks(size);
  Launch launch{.launcher = "RANK and WORLD_SIZE", .rank = *rank, .size = *size};
  const std::optional<std::string> run = variables.text("TORCHELASTIC_RUN_ID");
  if (run) launch.launcher = "torchrun";
  if (const auto own = variables.text("TITAN_LAUNCHER")) launch.launcher = *own;
  launch.local_rank = variables.number("LOCAL_RANK");
  launch.local_size = variables.number("LOCAL_WORLD_SIZE");
  if (launch.size == 1) return launch;
  launch.rendezvous.kind = RendezvousEndpoint::Kind::rank_zero;
  launch.rendezvous.run = run.value_or("by hand");
  if (run && !variables.has("TITAN_LAUNCHER")) {
    // Agents count restarts separately, so TORCHELASTIC_RESTART_COUNT differs between ranks after a node was replaced.
    // The number of ranks keeps attempts of another size apart.
    launch.rendezvous.run += fmt::format(", {} ranks", launch.size);
    launch.rendezvous.restarts = true;
  }
  if (variables.has("TITAN_LAUNCHER")) {
    launch.rendezvous.host = kLoopback;
    launch.rendezvous.ports = derived_ports(name_key(launch.rendezvous.run));
    return launch;
  }
  const std::optional<std::string> address = variables.text("MASTER_ADDR");
  const std::optional<std::string> port = variables.text("MASTER_PORT");
  if (!address || !port) {
    refuse(fmt::format(
        "RANK = {} and WORLD_SIZE = {} are set, and {} is not; set MASTER_ADDR and MASTER_PORT to where rank "
        "0 is to listen, or start the run with titan_train launch, torchrun, mpirun or srun",
        launch.rank, launch.size, address ? "MASTER_PORT" : "MASTER_ADDR"));
  }
  launch.rendezvous.host = *address;
  launch.rendezvous.ports = {parse_port(*port, "MASTER_PORT")};
  // The agent listens at that port itself for its store, so rank 0 cannot: use ports derived from it.
  if (to_lower(variables.text_or("TORCHELASTIC_USE_AGENT_STORE", "")) == "true") {
    launch.rendezvous.run += ", port " + *port;
    launch.rendezvous.ports = derived_ports(name_key(launch.rendezvous.run));
    if (launch.local_size == launch.size) launch.rendezvous.host = kLoopback;
  }
  return launch;
}

std::optional<Launch> from_open_mpi(const EnvironmentVariables& variables) {
  const std::optional<int64_t> rank = variables.number("OMPI_COMM_WORLD_RANK");
  if (!rank) return std::nullopt;
  Launch launch{.launcher = "mpirun", .rank = *rank};
  launch.size = variables.required_number("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  launch.local_rank = variables.required_number("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK");
  launch.local_size = variables.required_number("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK");
  const std::string job = variables.text_or("OMPI_MCA_ess_base_jobid", variables.text_or("PMIX_NAMESPACE", ""));
  launch.rendezvous = rendezvous_endpoint(variables, launch, job, name_key(job));
  return launch;
}

std::optional<Launch> from_pmi(const EnvironmentVariables& variables, const LaunchContext& context) {
  const std::optional<int64_t> rank = variables.number("PMI_RANK");
  if (!rank) return std::nullopt;
  // srun --mpi=pmi2 also sets PMI's variables; Slurm's contain more.
  if (variables.has("SLURM_STEP_ID") && !variables.has("MPI_LOCALRANKID")) return std::nullopt;
  Launch launch{.launcher = "mpiexec", .rank = *rank};
  launch.size = variables.required_number("PMI_SIZE", "PMI_RANK");
  // Cray's launcher sets the first name, Hydra (MPICH, Intel MPI) the second.
  const bool cray = variables.has("PMI_LOCAL_RANK");
  launch.local_rank = variables.number(cray ? "PMI_LOCAL_RANK" : "MPI_LOCALRANKID");
  launch.local_size = variables.number(cray ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS");
  set_endpoint_without_job(variables, context, launch);
  return launch;
}

void refuse_batch_shell(const EnvironmentVariables& variables) {
  const std::optional<std::string> job = variables.text("SLURM_JOB_ID");
  const int64_t tasks = variables.number_or("SLURM_NTASKS", 1);
  if (!job || tasks <= 1) return;
  refuse(
      fmt::format("this is a shell of Slurm job {}, not one of its {} tasks; start the run with srun (srun -K "
                  "titan_train …), or as a single process with srun -n 1",
                  *job, tasks));
}

std::optional<Launch> from_slurm(const EnvironmentVariables& variables) {
  const std::optional<int64_t> step = variables.number("SLURM_STEP_ID");
  if (!step || *step >= kFirstSpecialStep) {
    refuse_batch_shell(variables);
    return std::nullopt;
  }
  Launch launch{.launcher = "srun"};
  launch.rank = variables.required_number("SLURM_PROCID", "SLURM_STEP_ID");
  const char* size = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  launch.size = variables.required_number(size, "SLURM_STEP_ID");
  launch.local_rank = variables.required_number("SLURM_LOCALID", "SLURM_STEP_ID");
  const std::string tasks = variables.text_or("SLURM_STEP_TASKS_PER_NODE", "");
  const int64_t node = variables.number_or("SLURM_NODEID", 0);
  const bool one_host = variables.number_or("SLURM_STEP_NUM_NODES", 0) == 1;
  launch.local_size = one_host ? launch.size : tasks_of_node(tasks, node).value_or(0);
  if (launch.local_size == 0) {
    refuse(
        fmt::format("SLURM_STEP_TASKS_PER_NODE = {} does not say how many tasks node {} has", as_shown(tasks), node));
  }
  const int64_t job_number = variables.number_or("SLURM_JOB_ID", 0);
  const std::string job =
      fmt::format("{}.{} restart {}", job_number, *step, variables.text_or("SLURM_RESTART_COUNT", "0"));
  launch.rendezvous = rendezvous_endpoint(variables, launch, job, static_cast<uint64_t>(job_number * 31 + *step));
  if (!launch.rendezvous.host.empty() || launch.size == 1) return launch;
  launch.rendezvous.host = first_node(variables.text_or("SLURM_STEP_NODELIST", ""));
  const std::string own = variables.text_or("SLURMD_NODENAME", launch.rendezvous.host);
  if (launch.rank == 0 && own != launch.rendezvous.host) {
    refuse(
        fmt::format("rank 0 runs on {}, and the other ranks look for it on {}, the first host of the step; leave out "
                    "srun's --distribution=arbitrary, or set MASTER_ADDR={}",
                    own, launch.rendezvous.host, own));
  }
  return launch;
}

/// Launchers implemented from their documentation only.
std::optional<Launch> from_other(const EnvironmentVariables& variables, const LaunchContext& context) {
  struct Names {
    const char *launcher, *rank, *size, *local_rank, *local_size;
  };
  static constexpr std::array<Names, 4> known{{
      {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
       "MV2_COMM_WORLD_LOCAL_SIZE"},
      {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
      {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""},
      {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
  }};
  for (const Names& names : known) {
    const std::optional<int64_t> rank = variables.number(names.rank);
    if (!rank) continue;
    Launch launch{.launcher = names.launcher, .rank = *rank};
    launch.size = variables.required_number(names.size, names.rank);
    launch.local_rank = variables.number(names.local_rank);
    if (*names.local_size) launch.local_size = variables.number(names.local_size);
    set_endpoint_without_job(variables, context, launch);
    return launch;
  }
  return std::nullopt;
}

Launch single_process(const EnvironmentVariables& variables) {
  const std::optional<int64_t> rank = variables.number("RANK");
  const std::optional<int64_t> size = variables.number("WORLD_SIZE");
  // Otherwise each process would train alone, all writing to one folder.
  if (const auto pmix = variables.text("PMIX_RANK")) {
    refuse(fmt::format(
        "PMIX_RANK = {} is set, so a launcher has started this process, and nothing says how many ranks there are; set "
        "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset PMIX_RANK to train with this process alone",
        *pmix));
  }
  // Some containers set a lone WORLD_SIZE = 1 or RANK = 0.
  refuse_no_ranks(size);
  if (rank.value_or(0) != 0) refuse(fmt::format("RANK = {} is set and WORLD_SIZE is not; set both or neither", *rank));
  if (size.value_or(1) != 1) refuse(fmt::format("WORLD_SIZE = {} is set and RANK is not; set both or neither", *size));
  return {};
}

/// The user's secret; else the random one that Open MPI 4 creates for every job and passes to its ranks only.
std::string secret_in(const EnvironmentVariables& variables) {
  return variables.text_or("TITAN_SECRET", variables.text_or("OMPI_MCA_orte_precondition_transports", ""));
}

Launch checked(Launch launch) {
  if (launch.size < 1 || launch.rank >= launch.size) {
    refuse(fmt::format("{} says rank {} of {} ranks; ranks count from 0 to {}", launch.launcher, launch.rank,
                       launch.size, std::max<int64_t>(0, launch.size - 1)));
  }
  const int64_t most = launch.local_size.value_or(launch.size);
  if (launch.local_rank && *launch.local_rank >= most) {
    refuse(fmt::format("{} says rank {} among the {} of this host, {} (LOCAL_RANK, LOCAL_WORLD_SIZE)", launch.launcher,
                       *launch.local_rank, most,
                       most > 1    ? fmt::format("which count from 0 to {}", most - 1)
                       : most == 1 ? "of which the one there is has number 0"
                                   : "which has one at least"));
  }
  require_host(launch.fake ? Launch{} : launch);
  if (launch.size == 1) launch.rendezvous = {};
  return launch;
}

}  // namespace

std::vector<uint16_t> derived_ports(uint64_t key) {
  std::vector<uint16_t> ports;
  for (uint64_t attempt = 0; attempt < kPortAttempts; ++attempt) {
    ports.push_back(static_cast<uint16_t>(kFirstDerivedPort + (key + attempt) % kDerivedPorts));
  }
  return ports;
}

Launch detect_launch(const CommSection& comm, const LaunchContext& context) {
  const EnvironmentVariables variables(context);
  std::optional<Launch> launch = from_dry_run(comm, variables);
  if (!launch) launch = from_options(comm, variables);
  if (!launch) launch = from_torchrun(variables);
  if (!launch) launch = from_open_mpi(variables);
  if (!launch) launch = from_pmi(variables, context);
  if (!launch) launch = from_slurm(variables);
  if (!launch) launch = from_other(variables, context);
  if (!launch) return single_process(variables);
  launch->rendezvous.secret = secret_in(variables);
  return checked(*std::move(launch));
}

// Slurm's notations for hosts and tasks.

namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string first_node(std::string_view node_list) {
  std::string name;
  size_t at = 0;
  while (at < node_list.size() && node_list[at] != ',') {
    if (node_list[at] != '[') {
      name += node_list[at++];
      continue;
    }
    const size_t close = node_list.find(']', at);
    const std::string_view ranges = node_list.substr(at + 1, close - at - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of("-,"));
    if (close == std::string_view::npos || first.empty()) {
      name.clear();
      break;
    }
    name += first;
    at = close + 1;
  }
  if (!name.empty()) return name;
  throw Error(ExitCode::launcher,
              fmt::format("SLURM_STEP_NODELIST = {} names no host; set MASTER_ADDR to the host of rank 0",
                          as_shown(node_list)));
}

std::optional<int64_t> tasks_of_node(std::string_view tasks_per_node, int64_t index) {
  for (const std::string& entry : split(tasks_per_node, ',')) {
    const size_t bracket = entry.find("(x");
    const std::optional<int64_t> tasks = whole_number(std::string_view(entry).substr(0, bracket));
    std::optional<int64_t> nodes = 1;
    if (bracket != std::string::npos) {
      if (!entry.ends_with(')')) return std::nullopt;
      nodes = whole_number(std::string_view(entry).substr(bracket + 2, entry.size() - bracket - 3));
    }
    if (!tasks || !nodes) return std::nullopt;
    if (index < *nodes) return tasks;
    index -= *nodes;
  }
  return std::nullopt;
}

}  // namespace titan

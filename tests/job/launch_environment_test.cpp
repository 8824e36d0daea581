#include "titan/job/launch_environment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "titan/base/error.h"

namespace titan {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Launch detect(const Variables& variables, const CommSection& comm = {}, int64_t launcher_process = 77) {
  LaunchContext context;
  context.variable = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  context.launcher_process = [=] { return launcher_process; };
  return detect_launch(comm, context);
}

/// The text with which `variables` are refused; fails when they are not, or with another exit code than 69.
std::string launch_refusal(const Variables& variables, const CommSection& comm = {}) {
  try {
    detect(variables, comm);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::launcher);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "abc"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"OMPI_MCA_ess_base_jobid", "1241251841"}};
const Variables kHydra{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};
const Variables kSlurmStep{{"SLURM_JOB_ID", "123"},
                           {"SLURM_STEP_ID", "4"},
                           {"SLURM_PROCID", "5"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                           {"SLURM_STEP_NODELIST", "n[007-008]"},
                           {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};
const Variables kBatchShell{{"SLURM_JOB_ID", "123"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};

TEST(LaunchEnvironment, NothingSetIsASingleProcessThatMeetsNobody) {
  const Launch launch = detect({});
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.launcher, "");
  EXPECT_EQ(launch.rendezvous.kind, RendezvousEndpoint::Kind::nowhere);
}

TEST(LaunchEnvironment, UnderTorchrunTheRanksOfAnAttemptMeetBesideTheAgentsStore) {
  const Launch launch = detect(kTorchrun);
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.rendezvous.kind, RendezvousEndpoint::Kind::rank_zero);
  EXPECT_EQ(launch.rendezvous.host, "node1");
  EXPECT_EQ(launch.rendezvous.ports.size(), 9u);
  EXPECT_EQ(launch.rendezvous.ports, detect(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})).rendezvous.ports);
  EXPECT_EQ(std::count(launch.rendezvous.ports.begin(), launch.rendezvous.ports.end(), 29500), 0);
  EXPECT_TRUE(launch.rendezvous.restarts);
  EXPECT_EQ(detect(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}})).rendezvous.host, "127.0.0.1") << "all ranks are here";
}

TEST(LaunchEnvironment, RanksWhoseAgentsCountOtherRestartsMeetAndThoseOfAnotherSizeDoNot) {
  for (const char* store : {"True", "False"}) {
    const auto of = [&](const Variables& more) {
      return detect(with(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", store}}), more)).rendezvous;
    };
    const RendezvousEndpoint second = of({}), first = of({{"TORCHELASTIC_RESTART_COUNT", "0"}});
    EXPECT_EQ(first.run, second.run);
    EXPECT_EQ(first.ports, second.ports);
    EXPECT_NE(of({{"WORLD_SIZE", "12"}}).run, second.run);
  }
  EXPECT_FALSE(detect(with(kTorchrun, {{"TITAN_LAUNCHER", "titan_train launch"}})).rendezvous.restarts);
}

TEST(LaunchEnvironment, TheSecretIsTheUsersElseTheOneThatOpenMpiDrawsForAJob) {
  EXPECT_EQ(detect(kOpenMpi).rendezvous.secret, "");
  const Variables random = with(kOpenMpi, {{"OMPI_MCA_orte_precondition_transports", "af00-12"}});
  EXPECT_EQ(detect(random).rendezvous.secret, "af00-12");
  EXPECT_EQ(detect(with(random, {{"TITAN_SECRET", "mine"}})).rendezvous.secret, "mine");
  EXPECT_EQ(detect(with(kSlurmStep, {{"TITAN_SECRET", "mine"}})).rendezvous.secret, "mine");
  EXPECT_EQ(detect(with(kTorchrun, {{"TITAN_SECRET", "mine"}})).rendezvous.secret, "mine");
}

TEST(LaunchEnvironment, TheRanksOfTitanTrainLaunchMeetOnThisMachineWhateverMasterIsSet) {
  const Launch launch = detect(with(kTorchrun, {{"TITAN_LAUNCHER", "titan_train launch"}}));
  EXPECT_EQ(launch.rendezvous.host, "127.0.0.1");
  EXPECT_EQ(launch.rendezvous.ports.size(), 9u);
}

TEST(LaunchEnvironment, WithoutTheAgentsStoreRankZeroListensOnTheMastersPort) {
  const Launch launch = detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}));
  EXPECT_EQ(launch.rendezvous.kind, RendezvousEndpoint::Kind::rank_zero);
  EXPECT_EQ(launch.rendezvous.ports, std::vector<uint16_t>{29500});
}

TEST(LaunchEnvironment, RankAndWorldSizeWithoutAMasterAreRefusedByTheMissingName) {
  EXPECT_NE(launch_refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(launch_refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).find("MASTER_PORT"),
            std::string::npos);
}

TEST(LaunchEnvironment, WhoIsOnAHostIsLeftToTheRankCheckWhereNobodySays) {
  const Launch by_variables =
      detect({{"RANK", "8"}, {"WORLD_SIZE", "16"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(by_variables.local_rank, std::nullopt);
  EXPECT_EQ(by_variables.local_size, std::nullopt);
  CommSection comm;
  comm.rank = 8;
  comm.world_size = 16;
  comm.master = "a:29500";
  EXPECT_EQ(detect({}, comm).local_rank, std::nullopt);
  EXPECT_EQ(detect({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "8"}}, comm).local_rank, 0);
  EXPECT_EQ(detect({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "8"}}, comm).local_size, 8);
}

TEST(LaunchEnvironment, OnOneHostMpirunsRanksMeetOnTheLoopbackAtPortsThatFollowFromTheJob) {
  const Launch launch = detect(kOpenMpi);
  EXPECT_EQ(launch.launcher, "mpirun");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.rendezvous.host, "127.0.0.1");
  EXPECT_EQ(launch.rendezvous.ports.size(), 9u);
  EXPECT_EQ(detect(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).rendezvous.ports, launch.rendezvous.ports);
  EXPECT_NE(detect(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "7"}})).rendezvous.ports, launch.rendezvous.ports);
}

TEST(LaunchEnvironment, OnSeveralHostsMpirunNeedsAMasterAddress) {
  const Variables several = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  EXPECT_NE(launch_refusal(several).find("set MASTER_ADDR"), std::string::npos);
  const Launch launch = detect(with(several, {{"MASTER_ADDR", "node1"}}));
  EXPECT_EQ(launch.rendezvous.host, "node1");
  EXPECT_EQ(launch.rendezvous.ports.size(), 9u);
  EXPECT_EQ(detect(with(several, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "4000"}})).rendezvous.ports,
            std::vector<uint16_t>{4000});
}

TEST(LaunchEnvironment, HydrasRanksOfOneHostShareTheProcessThatStartedThem) {
  const Launch launch = detect(kHydra);
  EXPECT_EQ(launch.launcher, "mpiexec");
  EXPECT_EQ(launch.local_size, 3);
  EXPECT_EQ(launch.rendezvous.host, "127.0.0.1");
  EXPECT_EQ(detect(kHydra).rendezvous.run, launch.rendezvous.run);
  EXPECT_NE(detect(kHydra, {}, 78).rendezvous.run, launch.rendezvous.run);
}

TEST(LaunchEnvironment, OnSeveralHostsHydraNeedsAMastersAddressAndPort) {
  const Variables several =
      with(kHydra, {{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}, {"MASTER_ADDR", "node1"}});
  EXPECT_NE(launch_refusal(several).find("MASTER_PORT"), std::string::npos);
  EXPECT_EQ(detect(with(several, {{"MASTER_PORT", "4000"}})).rendezvous.host, "node1");
}

TEST(LaunchEnvironment, ASlurmStepMeetsOnItsFirstHostAndNeverOnTheSubmittingOne) {
  const Launch launch = detect(kSlurmStep);
  EXPECT_EQ(launch.launcher, "srun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.rendezvous.host, "n007");
  EXPECT_EQ(launch.rendezvous.ports, derived_ports(123 * 31 + 4));
  EXPECT_EQ(launch.rendezvous.ports.front(), 61440 + (123 * 31 + 4) % 4096);
}

TEST(LaunchEnvironment, ASlurmStepOnOneNodeMeetsOnTheLoopback) {
  EXPECT_EQ(detect(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "1"}})).rendezvous.host, "127.0.0.1");
}

TEST(LaunchEnvironment, ARequeuedJobDoesNotMeetItsFormerRun) {
  EXPECT_NE(detect(with(kSlurmStep, {{"SLURM_RESTART_COUNT", "1"}})).rendezvous.run, detect(kSlurmStep).rendezvous.run);
}

TEST(LaunchEnvironment, RankZeroOnAnotherHostThanTheFirstIsRefused) {
  const Variables zero = with(kSlurmStep, {{"SLURM_PROCID", "0"}, {"SLURMD_NODENAME", "n008"}});
  EXPECT_NE(launch_refusal(zero).find("MASTER_ADDR=n008"), std::string::npos);
  EXPECT_EQ(detect(with(zero, {{"SLURMD_NODENAME", "n007"}})).rendezvous.host, "n007");
}

TEST(LaunchEnvironment, TheBatchShellOfSeveralTasksIsRefusedWithTheWordSrun) {
  EXPECT_NE(launch_refusal(kBatchShell).find("start the run with srun"), std::string::npos);
  EXPECT_NE(launch_refusal(with(kBatchShell, {{"SLURM_STEP_ID", "4294967290"}})).find("srun"), std::string::npos);
  EXPECT_EQ(detect(with(kBatchShell, {{"SLURM_NTASKS", "1"}})).size, 1);
}

TEST(LaunchEnvironment, MpirunAndHydraInsideASlurmJobComeBeforeSlurm) {
  EXPECT_EQ(detect(with(kBatchShell, kOpenMpi)).rank, 1);
  EXPECT_EQ(detect(with(kBatchShell, kHydra)).rank, 2);
  EXPECT_EQ(detect(with(kSlurmStep, kHydra)).rank, 2);
  EXPECT_EQ(detect(with(kBatchShell, kTorchrun)).rank, 5);
}

TEST(LaunchEnvironment, SrunWithPmi2IsASlurmStep) {
  EXPECT_EQ(detect(with(kSlurmStep, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})).launcher, "srun");
}

TEST(LaunchEnvironment, OptionsComeBeforeEveryLauncher) {
  CommSection comm;
  comm.rank = 1;
  comm.world_size = 3;
  comm.master = "[fe80::1]:4000";
  const Launch launch = detect(with(kTorchrun, kOpenMpi), comm);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 3);
  EXPECT_EQ(launch.rendezvous.kind, RendezvousEndpoint::Kind::rank_zero);
  EXPECT_EQ(launch.rendezvous.host, "fe80::1");
  EXPECT_EQ(launch.rendezvous.ports, std::vector<uint16_t>{4000});
}

TEST(LaunchEnvironment, AMasterWithoutAUsablePortIsRefused) {
  CommSection comm;
  comm.rank = 0;
  comm.world_size = 2;
  for (const char* master : {"node1", ":4000", "node1:", "node1:0", "node1:70000", "node1:4000x"}) {
    comm.master = master;
    EXPECT_NE(launch_refusal({}, comm).find("comm.master"), std::string::npos) << master;
  }
}

TEST(LaunchEnvironment, ADryRunStandsForOneRankOfItsWorldAndMeetsNobody) {
  CommSection comm;
  comm.mode = "fake_backend";
  EXPECT_NE(launch_refusal({}, comm).find("comm.world_size"), std::string::npos);
  comm.world_size = 32;
  const Launch launch = detect({}, comm);
  EXPECT_TRUE(launch.fake);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 32);
  EXPECT_EQ(launch.rendezvous.kind, RendezvousEndpoint::Kind::nowhere);
}

TEST(LaunchEnvironment, HalfSetAndMalformedVariablesAreRefusedByName) {
  EXPECT_NE(launch_refusal({{"RANK", "1"}}).find("WORLD_SIZE is not"), std::string::npos);
  EXPECT_NE(launch_refusal({{"WORLD_SIZE", "2"}}).find("RANK is not"), std::string::npos);
  EXPECT_NE(launch_refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).find("RANK = \"one\""), std::string::npos);
  EXPECT_NE(launch_refusal(with(kTorchrun, {{"RANK", "8"}})).find("rank 8 of 8"), std::string::npos);
  EXPECT_NE(launch_refusal({{"OMPI_COMM_WORLD_RANK", "0"}}).find("OMPI_COMM_WORLD_SIZE"), std::string::npos);
  EXPECT_EQ(detect({{"WORLD_SIZE", "1"}}).size, 1);
  EXPECT_EQ(detect({{"RANK", ""}, {"WORLD_SIZE", ""}}).size, 1);
}

TEST(LaunchEnvironment, ALocalRankThatItsHostDoesNotHaveIsRefused) {
  EXPECT_NE(launch_refusal(with(kTorchrun, {{"LOCAL_RANK", "4"}})).find("rank 4 among the 4 of this host"),
            std::string::npos);
  const Variables alone{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "3"}};
  const std::string said = "rank 3 among the 1 of this host, of which the one there is has number 0";
  EXPECT_NE(launch_refusal(alone).find(said), std::string::npos) << launch_refusal(alone);
  EXPECT_NE(launch_refusal(with(alone, {{"LOCAL_WORLD_SIZE", "1"}})).find(said), std::string::npos);
  EXPECT_NE(launch_refusal(with(alone, {{"LOCAL_WORLD_SIZE", "0"}})).find("which has one at least"), std::string::npos);
}

TEST(LaunchEnvironment, AWorldOfNoRanksIsRefusedWithWhatToSet) {
  for (const Variables& more : {Variables{}, Variables{{"RANK", "0"}}}) {
    EXPECT_EQ(
        launch_refusal(with(more, {{"WORLD_SIZE", "0"}})),
        "WORLD_SIZE = 0 is not a number of ranks; set it to the number of processes that the run has, or unset RANK "
        "and WORLD_SIZE to train with this process alone");
  }
}

TEST(LaunchEnvironment, AHugeListOfNodesIsReadAndNotRepeatedWhenItIsWrong) {
  std::string nodes = "n[1", tasks = "4";
  for (int i = 0; i < 20000; ++i) {
    nodes += ",7";
    tasks += ",4";
  }
  const Variables step = with(kSlurmStep, {{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(detect(with(step, {{"SLURM_STEP_NODELIST", nodes + "]"}, {"SLURM_NODEID", "0"}})).rendezvous.host, "n1");
  const std::string refused = launch_refusal(with(step, {{"SLURM_STEP_NODELIST", nodes}}));
  EXPECT_NE(refused.find("SLURM_STEP_NODELIST = \"n[1,7,7"), std::string::npos) << refused;
  EXPECT_NE(refused.find("(40003 bytes) names no host; set MASTER_ADDR"), std::string::npos) << refused;
  EXPECT_LT(refused.size(), 200u);
  EXPECT_LT(launch_refusal(with(step, {{"SLURM_STEP_TASKS_PER_NODE", tasks + "x"}, {"SLURM_NODEID", "30000"}})).size(),
            200u);
}

TEST(LaunchEnvironment, CraysLauncherIsKnownWithAndWithoutItsPmi) {
  const Variables master{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  const Launch pals = detect(with(master, {{"PALS_RANKID", "3"}, {"PMI_SIZE", "4"}, {"PALS_LOCAL_RANKID", "1"}}));
  EXPECT_EQ(pals.rank, 3);
  EXPECT_EQ(pals.size, 4);
  EXPECT_EQ(pals.local_rank, 1);
  EXPECT_EQ(pals.local_size, std::nullopt);
  EXPECT_NE(launch_refusal({{"PALS_RANKID", "0"}}).find("PMI_SIZE is not"), std::string::npos);
  const Launch pmi =
      detect(with(master, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(pmi.local_rank, 1);
  EXPECT_EQ(pmi.local_size, 2);
}

TEST(LaunchEnvironment, ARankOfUnknownManyIsRefusedRatherThanTrainedAlone) {
  EXPECT_NE(launch_refusal({{"PMIX_RANK", "0"}}).find("nothing says how many ranks there are"), std::string::npos);
  EXPECT_EQ(detect(with(kSlurmStep, {{"PMIX_RANK", "5"}})).launcher, "srun");
  EXPECT_EQ(detect(with(kOpenMpi, {{"PMIX_RANK", "1"}})).launcher, "mpirun");
}

TEST(LaunchEnvironment, ALauncherWithOneRankMeetsNobody) {
  const Launch launch = detect(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"},
                                               {"OMPI_COMM_WORLD_SIZE", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}));
  EXPECT_EQ(launch.rendezvous.kind, RendezvousEndpoint::Kind::nowhere);
}

TEST(LaunchEnvironment, DerivedPortsStayAboveTheEphemeralOnesAndBelowTheEnd) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{4095}, uint64_t{4096}, ~uint64_t{0}}) {
    const std::vector<uint16_t> ports = derived_ports(key);
    EXPECT_EQ(ports.size(), 9u);
    for (const uint16_t port : ports) EXPECT_GE(port, 61440);
  }
  EXPECT_EQ(derived_ports(4095)[1], 61440);
}

TEST(SlurmNotation, TheFirstHostOfAListIsTakenApartFromItsBrackets) {
  EXPECT_EQ(first_node("a"), "a");
  EXPECT_EQ(first_node("a,b"), "a");
  EXPECT_EQ(first_node("n[001-015],h2"), "n001");
  EXPECT_EQ(first_node("n[001,007-9]-x"), "n001-x");
  EXPECT_EQ(first_node("n[007-9,001]-x,m"), "n007-x");
  EXPECT_EQ(first_node("rack[2-3]node[5,7]"), "rack2node5");
  for (const char* malformed : {"", "n[001", "n[]", "n[-3]"}) EXPECT_THROW(first_node(malformed), Error) << malformed;
}

TEST(SlurmNotation, TasksOfANodeAreCountedThroughRepetitions) {
  EXPECT_EQ(tasks_of_node("2(x2)", 1), 2);
  EXPECT_EQ(tasks_of_node("4(x2),3,1(x4)", 2), 3);
  EXPECT_EQ(tasks_of_node("4(x2),3,1(x4)", 6), 1);
  EXPECT_EQ(tasks_of_node("4(x2),3,1(x4)", 7), std::nullopt);
  EXPECT_EQ(tasks_of_node("", 0), std::nullopt);
  EXPECT_EQ(tasks_of_node("4(x", 0), std::nullopt);
}

}  // namespace
}  // namespace titan

"""The parts of a session: engines, trainers and rewards on the pods of the job, and what they work with."""

import queue
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from longshore.api.names import Component
from longshore.api.objectives.custom import Custom
from longshore.api.objectives.distillation import AT as TEACHER
from longshore.api.objectives.with_critic import AT as VALUE_MODEL
from longshore.api.objectives.with_critic import ObjectiveWithCritic
from longshore.api.pods import DEFAULT_GPU_POD_MEMORY
from longshore.api.reasons import NoticeReason
from longshore.api.rollout import Handover, Strategy
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import Recompute
from longshore.api.warm_start import WarmStart
from longshore.checks.job import few_prompts
from longshore.checks.memory import ModelSize, recompute_needs
from longshore.checks.model_files import config_of
from longshore.checks.model_limits import possible_tp_sizes, vocab_size
from longshore.checks.trackers import missing_packages
from longshore.policy.auto import Auto, free_handovers
from longshore.policy.log_prob_mismatch import engines_are_exact
from longshore.policy.long_round_updates import expected_updates
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.strategies import round_policy
from longshore.sim.auto import AutoTuner
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.checkpoints.model_export import BaseModel, ModelExport
from longshore_runtime.checkpoints.origin import (
    BASE,
    MODEL,
    TOKENIZER,
    TRAINED,
    WARM_START,
    Origin,
    base_origin,
    critic_origin,
    model_origin,
    prompt_origins,
    tokenizer_origin,
    trained_origin,
    warm_start_origin,
)
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.checkpoints.tensor_types import TensorTypes
from longshore_runtime.checkpoints.trained_chat import TrainedChat
from longshore_runtime.clock import SystemClock
from longshore_runtime.cluster.placement import placement
from longshore_runtime.data.dataset import PromptSets, prompt_sets
from longshore_runtime.data.suitability import held_out_remark, require_known_tokens, turn_remark
from longshore_runtime.data.tokenizer import load_tokenizer, require_same_tokens
from longshore_runtime.data.turn_end import turn_ends
from longshore_runtime.elastic.auto_factors import AutoFactors
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.elastic.size import require_no_fewer
from longshore_runtime.elastic.spare_time import SpareTimeSearch
from longshore_runtime.environments.pool import EnvironmentPool, environment_pool, hosts
from longshore_runtime.errors import UserError
from longshore_runtime.job_rewards import reward_pods, worker_groups
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.places import Place, trainer_places
from longshore_runtime.process.repeated import PROGRESS_EVERY_S, repeated
from longshore_runtime.rewards.kinds.registry import kind_of
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rewards.row_fields import rehearsals, with_row_fields
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.transports.pod import ServingPods
from longshore_runtime.rewards.transports.pod_logs import PodLogs
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from longshore_runtime.session.data_types import with_data_types
from longshore_runtime.session.ending import Ending
from longshore_runtime.session.initial_model import check_model, initial_model, model_size, with_fitting_memory
from longshore_runtime.session.inputs import JobInputs, job_inputs
from longshore_runtime.session.warm_start import WarmStartParts, WarmStartRun, cache_key, supervised_rows, trainer_spec
from longshore_runtime.settings import Settings
from longshore_runtime.step.parts import Parts
from longshore_runtime.stop import Stop
from longshore_runtime.storage import JobStorage
from longshore_runtime.tasks.rows import builtin_prompt_sets
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.recording import recording
from longshore_runtime.telemetry.step_done import JobFacts, Places
from longshore_runtime.telemetry.step_records import StepRecords
from longshore_runtime.trainer.direct_weights import Delivery
from longshore_runtime.trainer.group import Checks, TrainerGroup
from longshore_runtime.trainer.objective_check import check_objective

log = structlog.get_logger()

_PODS_LIMIT_S: Final = 24 * 3600.0
"""Seconds to wait for reward or environment pods, which may wait for room; the operator reports that."""


class PartsBuilder:
    """Starts the parts in the order in which mistakes cost least: files first, engines last."""

    def __init__(
        self,
        spec: RLJobSpec,
        settings: Settings,
        storage: JobStorage,
        checkpoints: CheckpointStore,
        recorder: Recorder,
        events: "queue.SimpleQueue[Event]",
        assignments: Assignments,
        stop: Stop,
        ending: Ending,
    ) -> None:
        """Prepare to build; `stop`: whether the pod was asked to stop; `ending` gets what ends the parts."""
        self._spec = spec
        self._attempt = settings.attempt
        self._names = {"longshore.job": settings.job, "longshore.namespace": settings.namespace}
        self._storage = storage
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._events = events
        self._assignments = assignments
        self._stop = stop
        self._ending = ending
        self._exit = ending.parts
        self._origins: dict[str, Origin] = {}
        self._size: ModelSize | None = None
        self.model = ""
        """Directory of the model before any training, relative to the storage; known once it is prepared."""
        self._warm_start: WarmStartRun | None = None
        self._teacher: str | None = None

    @property
    def spec(self) -> RLJobSpec:
        """The job; once it is built, with what it leaves open."""
        return self._spec

    def build(self) -> Parts:
        """Start everything on the pods of the job; raises UserError for what cannot start."""
        spec, algorithm = self._spec, self._spec.algorithm
        if missing := missing_packages(spec.tracking):
            raise UserError(missing[0])
        inputs = self._inputs()
        self._begin(RuntimeActivity.PREPARE_MODEL)
        check_model(
            inputs.model,
            spec.rollout.engine,
            spec.trainer,
            self._storage,
            has_accelerator=spec.workers.has_accelerator,
            repository=inputs.repository,
        )
        directory = self._storage.resolve(inputs.model.path or "")
        of_model = model_origin(inputs.model, inputs.repository, directory)
        self._require_origins({MODEL: of_model, TRAINED: trained_origin(spec.trainer.lora)})
        if algorithm.warm_start is not None:
            self._require_origins({WARM_START: warm_start_origin(algorithm.warm_start, spec.data.builtin)})
        self.model = initial_model(inputs.model, algorithm.seed, placement(0))
        self._size = model_size(self._storage.resolve(self.model))
        self._spec, data_types = with_data_types(spec, self._size, self._measured_places(), self._require_pods)
        if data_types is not None:
            self._recorder.data_types(data_types)
        if self._size is not None:
            self._spec = with_fitting_memory(self._spec, self._size)
        spec = self._spec
        tokenizer = load_tokenizer(self._storage.resolve(self.model), inputs.repository)
        self._require_origins({TOKENIZER: tokenizer_origin(of_model, tokenizer)})
        self._teacher, others = inputs.teacher, {TEACHER: inputs.teacher}
        if isinstance(algorithm.objective, ObjectiveWithCritic):
            others[VALUE_MODEL] = algorithm.objective.value_model
            self._require_origins({VALUE_MODEL: critic_origin(algorithm.objective.value_model)})
        for field, other in others.items():
            if other is not None:
                require_same_tokens(tokenizer, load_tokenizer(self._storage.resolve(other), field=field), field)
        prompts = with_row_fields(self._prompts(inputs, tokenizer), spec.reward.functions, spec.environments)
        teacher = self._remote_teacher(prompts, tokenizer)
        # A reward that cannot score is found before engines take minutes to start.
        rewards = self._rewards(prompts)
        if isinstance(algorithm.objective, Custom):
            check_objective(algorithm.objective, self._trainer_places()[0], self._require_pods)
        stop_tokens = turn_ends(prompts.train, spec.data.chat, tokenizer)
        starting = self._engines(stop_tokens) if self._starts_engines_early else None
        if algorithm.warm_start is not None:
            self.model = self._warm_started(algorithm.warm_start, inputs, tokenizer)
        if spec.trainer.lora is not None:
            self._require_origins({BASE: base_origin(of_model, self._storage.resolve(self.model))})
        self._wait_for_rewards(rewards)
        environments = self._environments(tokenizer, prompts) if spec.environments else None
        self._begin(RuntimeActivity.START_ENGINES)
        engines, trainers = self._engines_and_trainers(self.model, starting or self._engines(stop_tokens))
        shape = BatchShape(algorithm.prompts_per_step, algorithm.responses_per_prompt)
        policy = round_policy(
            spec.rollout,
            shape,
            prompts.draws(algorithm.seed),
            groups_per_update=algorithm.groups_per_update,
            dynamic_sampling=algorithm.dynamic_sampling,
        )
        return Parts(
            policy=policy,
            prompts=prompts,
            engines=engines,
            trainers=trainers,
            rewards=rewards,
            checkpoints=self._checkpoints,
            storage=self._storage,
            recorder=self._recorder,
            assignments=self._assignments,
            elastic=self._elastic(),
            events=self._events,
            clock=SystemClock(),
            records=self._records(prompts, engines, trainers),
            environments=environments,
            teacher=teacher,
            auto=self._auto(policy),
            stop=self._stop,
            origins=self._origins,
            export=self._export(stop_tokens),
        )

    def _require_origins(self, origins: Mapping[str, Origin]) -> None:
        """Note what the checkpoints of the job belong to; raises UserError if the newest one belongs to another."""
        newest = self._checkpoints.newest()
        if newest is not None:
            saved = newest.state()["origins"]
            for kind, origin in origins.items():
                if kind in saved:  # The round policy refuses to go on with other data sets than it had.
                    origin.require(saved[kind], newest.step)
        self._origins.update(origins)

    def _export(self, stop_tokens: tuple[int, ...]) -> ModelExport:
        chat = self._spec.data.chat
        base: BaseModel | None = None
        if self._spec.trainer.lora is not None:
            # After a warm start, an adapter changes other weights than those of the repository.
            repository = self._spec.model.hub if self._spec.algorithm.warm_start is None else None
            base = BaseModel(self._storage.resolve(self.model), repository or self.model)
        trained = TrainedChat((chat.template if chat is not None else None) or "", stop_tokens)
        return ModelExport(trained, self._written_types(), base)

    def _written_types(self) -> TensorTypes:
        """Return the types of the models that the job writes: those with which its engines sample."""
        dtype = self._spec.rollout.engine.dtype
        if engines_are_exact(dtype, have_accelerators=self._spec.workers.has_accelerator):
            return TensorTypes()
        return TensorTypes.of(self._storage.resolve(self.model))

    def _begin(self, activity: RuntimeActivity) -> None:
        self._stop.require_none()  # The exception of the handler may have been lost, in a callback of an import.
        self._recorder.activity(activity)

    def _inputs(self) -> JobInputs:
        """Return model and data, downloaded first if they are not in the storage."""
        spec = self._spec
        if spec.uses_hub:
            self._begin(RuntimeActivity.DOWNLOAD)
        return job_inputs(spec, self._storage, self._recorder.download)

    @property
    def _starts_engines_early(self) -> bool:
        """Whether engines start beside the warm start: they get its weights later, like those of every step.

        On GPUs they wait for judges to take their share of the memory. With LoRA they get an adapter and nothing else,
        and so need the files of the warm start.
        """
        spec = self._spec
        is_early = not spec.workers.has_accelerator and spec.trainer.lora is None
        return spec.algorithm.warm_start is not None and is_early

    def _warm_started(self, settings: WarmStart, inputs: JobInputs, tokenizer: Any) -> str:
        """Return the directory of the model after its warm start, which trainers of their own make if it is not there.

        On GPUs they have them alone: engines start later.
        """
        spec, origins = self._spec, {kind: self._origins[kind] for kind in (MODEL, WARM_START)}
        trainers = trainer_spec(
            spec.algorithm,
            settings,
            spec.trainer,
            self._recompute_needs(),
            is_colocated=spec.placement is Placement.COLOCATED,
        )
        cache = f"{self.model}-{cache_key(origins[WARM_START], trainers)}" if settings.data is None else None
        parts = WarmStartParts(
            start_trainers=lambda: self._trainer_group(self.model, trainers, Delivery()),
            exchanges_of=lambda: supervised_rows(
                spec, settings, inputs, tokenizer, vocab_size(self._config()), self._recorder
            ),
            origins=origins,
            storage=self._storage,
            recorder=self._recorder,
            stop=self._stop,
            clock=SystemClock(),
            checkpoint=spec.checkpoint,
            require_own=self._checkpoints.require_own,
            types=self._written_types(),
            tensor_board=spec.tracking.tensor_board,
            cache=cache,
        )
        self._warm_start = WarmStartRun(settings, parts)
        return self._warm_start.run()

    @property
    def num_warm_start_steps(self) -> int:
        """Number of supervised steps that this session has made."""
        return 0 if self._warm_start is None else self._warm_start.num_steps

    def _config(self) -> Mapping[str, Any]:
        """Return the configuration of the initial model."""
        return config_of(self._storage.resolve(self.model))

    def _prompts(self, inputs: JobInputs, tokenizer: Any) -> PromptSets:
        data = self._spec.data
        if data.builtin is not None:
            self._require_origins(prompt_origins(data, ()))
            return builtin_prompt_sets(data, self._spec.algorithm.seed, tokenizer)
        context_tokens = self._spec.model.max_context_tokens - self._spec.algorithm.max_response_tokens
        rows = inputs.rows(self._spec.reward.functions, self._spec.environments)
        self._require_origins(prompt_origins(inputs.data, rows))
        prompts = prompt_sets(rows, data, tokenizer, context_tokens)
        require_known_tokens(prompts, vocab_size(self._config()))
        if (remark := few_prompts(len(prompts.train), self._spec.algorithm.prompts_per_step)) is not None:
            self._recorder.notice(NoticeReason.FEW_PROMPTS, remark)
        if (remark := held_out_remark(prompts, data.held_out_prompts)) is not None:
            self._recorder.notice(NoticeReason.FEW_PROMPTS, remark)
        if (remark := turn_remark(prompts, data.chat, tokenizer)) is not None:
            self._recorder.notice(NoticeReason.NO_GENERATION_PROMPT, remark)
        self._recorder.prompts(prompts.counts)
        log.info("prompts", **prompts.counts.model_dump(by_alias=False))
        return prompts

    def _records(self, prompts: PromptSets, engines: EnginePool, trainers: TrainerGroup) -> StepRecords:
        spec = self._spec
        job = JobFacts(
            attempt=self._attempt,
            prompts=prompts.train,
            held_out=prompts.held_out,
            max_response_tokens=spec.algorithm.max_response_tokens,
            is_colocated=spec.placement is Placement.COLOCATED,
            clock_offset_s=time.time() - SystemClock().now_s(),
        )
        return self._ending.reports.enter_context(
            recording(
                self._storage.output_dir,
                spec.records,
                spec.tracking.open_telemetry,
                job,
                self._names,
                lambda: Places(engines.lane_places(), trainers.lane_places()),
                self._recorder.notice,
                self._ending.left_s,
            )
        )

    def _auto(self, policy: RoundPolicy) -> AutoFactors | None:
        if not isinstance(policy, Auto):
            return None
        factors = AutoFactors(policy, AutoTuner(self._spec), SpareTimeSearch)
        self._exit.callback(factors.close)
        return factors

    def _elastic(self) -> ThreadPoolExecutor:
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="elastic")
        self._exit.callback(executor.shutdown, wait=False, cancel_futures=True)
        return executor

    def _engines_and_trainers(self, model: str, engines: EnginePool) -> tuple[EnginePool, TrainerGroup]:
        """Wait for engines, and start trainers.

        On shared GPUs they start in turn, because an engine measures the free memory before a trainer uses it.
        """
        with repeated(lambda: self._report_start(engines), PROGRESS_EVERY_S):
            if self._spec.placement is Placement.COLOCATED and self._spec.workers.has_accelerator:
                engines.wait_for_all(self._require_pods)
                engines.sleep()
                trainers = self._trainers(model)
            else:
                trainers = self._trainers(model)
                engines.wait_for_all(self._require_pods)
        trainers.watch(self._events)
        return engines, trainers

    def _require_pods(self) -> None:
        """End a wait for worker pods if the job is to stop, as they end with it, or to go on with fewer."""
        self._stop.require_none()
        require_no_fewer(self._assignments, self._spec.workers.replicas)

    def _wait_for_rewards(self, rewards: RewardPool) -> None:
        self._begin(RuntimeActivity.WAIT_FOR_REWARD_PODS)
        with repeated(lambda: self._report_pods(Component.REWARD, self._spec.reward.pods), PROGRESS_EVERY_S):
            rewards.wait_ready(_PODS_LIMIT_S)

    def _environments(self, tokenizer: Any, prompts: PromptSets) -> EnvironmentPool:
        """Connect to the environments, and wait until each of them can begin an episode."""
        self._begin(RuntimeActivity.WAIT_FOR_ENVIRONMENT_PODS)
        pods = hosts(self._spec.environments, partial(self._assignments.address_of, Component.ENVIRONMENT))
        self._copy_logs(pods)
        pool = environment_pool(self._spec, pods, tokenizer, self._events.put, self._recorder.notice, self._exit)
        with repeated(lambda: self._report_pods(Component.ENVIRONMENT, pods.count), PROGRESS_EVERY_S):
            pool.rehearse((*prompts.train, *prompts.held_out), _PODS_LIMIT_S)
        return pool

    def _report_pods(self, component: Component, num_pods: int) -> None:
        """Report how many pods of a component are there; called from another thread while something waits for them."""
        if num_pods:
            num_there = sum(self._assignments.address_of(component, pod) is not None for pod in range(num_pods))
            self._recorder.progress(ProgressUnit.PODS, num_there, num_pods)

    def _copy_logs(self, pods: ServingPods) -> None:
        """Copy the logs of pods to the output directory until the session ends."""
        logs = PodLogs(pods, self._storage.output_dir / "logs", self._attempt)
        self._ending.reports.callback(lambda: logs.close(self._ending.left_s()))

    def _report_start(self, engines: EnginePool) -> None:
        """Report progress; called from another thread while engines and trainers start."""
        start = engines.starting()
        waits_for_trainers = start.num_started == start.num_engines
        detail = "trainers load the model" if waits_for_trainers else start.detail
        self._recorder.progress(ProgressUnit.ENGINES, start.num_started, start.num_engines, detail)

    def _engines(self, stop_tokens: tuple[int, ...]) -> EnginePool:
        options = self._spec.rollout.engine
        spec = EngineSpec(
            options=options,
            max_context_tokens=self._spec.model.max_context_tokens,
            seed=self._spec.algorithm.seed,
            accelerator=self._spec.workers.has_accelerator,
            stop_tokens=stop_tokens,
            lora=self._spec.trainer.lora,
            returns_experts=self._spec.trainer.router_replay,
            tokenizer=self.model,
        )
        output, notify = self._storage.output, self._recorder.notice
        engines = EnginePool(
            self._spec.workers, spec, self.model, output, self._events, notify, self._stop.require_none
        )
        self._exit.callback(engines.stop)
        self._recorder.engines(engines.tp_size)
        pods = self._spec.workers
        sizes = possible_tp_sizes(self._config(), pods.gpus_per_pod, pods.replicas, options.tensor_parallel_size)
        self._recorder.possible_sizes(sizes)
        return engines

    def _trainers(self, model: str) -> TrainerGroup:
        algorithm, rollout = self._spec.algorithm, self._spec.rollout
        spec = TrainerSpec.of(
            algorithm,
            self._spec.trainer,
            expected_updates(algorithm, rollout),
            is_colocated=self._spec.placement is Placement.COLOCATED,
            recompute_needs=self._recompute_needs(),
        )
        may_pipeline = rollout.is_pipelined or (
            rollout.strategy is Strategy.AUTO and Handover.PIPELINED in free_handovers(self._spec)
        )
        delivery = Delivery(self._spec.transfers_directly, keeps_copies=may_pipeline)
        trainers = self._trainer_group(model, replace(spec, teacher=self._teacher), delivery)
        self._exit.callback(trainers.stop)
        return trainers

    def _measured_places(self) -> list[Place]:
        """Return a pod of each kind that computes on the CPU."""
        kinds = {(place.component, place.worker): place for place in (self._trainer_places()[0], Place(0, ()))}
        workers = {Component.TRAINER: self._spec.training_pods, Component.WORKER: self._spec.workers}
        return [place for (component, _), place in kinds.items() if not workers[component].has_accelerator]

    def _trainer_group(self, model: str, spec: TrainerSpec, delivery: Delivery) -> TrainerGroup:
        spec = replace(spec, pod_memory_bytes=self._spec.training_pods.memory_bytes(DEFAULT_GPU_POD_MEMORY))
        checks = Checks(self._require_pods, self._stop.require_time_to_update)
        return TrainerGroup(self._trainer_places(), spec, model, self._storage.output, delivery, checks)

    def _recompute_needs(self) -> Mapping[Recompute, float] | None:
        return recompute_needs(self._spec, self._size) if self._size else None

    def _trainer_places(self) -> list[Place]:
        spec = self._spec
        component = Component.TRAINER if spec.placement is Placement.DISAGGREGATED else Component.WORKER
        num_ranks = spec.trainer.ranks_per_replica
        return trainer_places(spec.training_pods, spec.trainer.data_parallel_size, num_ranks, component)

    def _remote_teacher(self, prompts: PromptSets, tokenizer: Any) -> RemoteTeacher | None:
        if (endpoint := self._spec.algorithm.teacher_endpoint) is None:
            return None
        teacher = RemoteTeacher.of(endpoint)
        self._exit.callback(teacher.close)
        teacher.require_same_tokens(prompts.train[0].prompt_tokens, lambda token: str(tokenizer.decode([token])))
        return teacher

    def _rewards(self, prompts: PromptSets) -> RewardPool:
        reward = self._spec.reward
        for function in reward.functions:
            kind_of(function.kind).check(function)
        pods = reward_pods(reward, partial(self._assignments.address_of, Component.REWARD))
        if pods is not None:
            self._copy_logs(pods)
        groups = worker_groups(reward, self._spec.workers, pods, self._exit)
        pool = RewardPool(
            groups,
            ScorerFactory(reward.functions, self._storage.output, rehearsals(prompts.train, reward.functions)),
            self._events,
            SystemClock(),
            self._recorder.reward_pressure if any(group.is_sized for group in groups) else None,
            self._recorder.reward_worker,
        )
        self._exit.callback(pool.stop)
        return pool

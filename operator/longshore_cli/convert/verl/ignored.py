"""Keys of verl without a field."""

from typing import Final

from longshore_cli.convert.mapping import Ignored
from longshore_cli.convert.verl.algorithm import ACTOR, ROLLOUT
from longshore_cli.convert.verl.parts import COMPOSED

_MODEL: Final = "actor_rollout_ref.model"
_OPTIMIZER: Final = """
    override_optimizer_config decay_type exp_avg_* lr_decay_ratio lr_decay_steps
    lr_min lr_start lr_warmup_init lr_wsd_* main_grads_dtype min_lr min_lr_factor muon_* name use_*
    weight_decay_incr_style
"""
_UPDATE: Final = """
    calculate_* data_loader_seed entropy_* freeze_vision_tower fsdp_config.* megatron.* pad_to_length rollout_n
    torchtitan.* use_fused_kernels use_prefix_grouper use_remove_padding use_torch_compile veomni.*
"""
_LAYOUT: Final = """
    enable_activation_offload exclude_modules external_lib fused_kernel_options.* lora.* lora_* mtp.* target_modules
    tiled_mlp.* use_fused_kernels use_liger use_shm
"""
_ENGINES: Final = """
    checkpoint_engine.* cudagraph_capture_sizes disable_log_stats disaggregation.*
    engine_kwargs.* full_determinism layered_summon load_format log_prob_* logprobs_mode moe_* mtp mtp.*
    multi_stage_wake_up n_gpus_per_node nnodes prometheus.* router_config_path scheduling_policy
    skip_tokenizer_init trace.* val_kwargs.*
"""
_VERIFIERS: Final = "num_workers reward_manager.* reward_model.* sandbox_fusion.*"
_OLD_VERIFIERS: Final = """
    enable_resource_pool model.* n_gpus_per_node nnodes num_workers reward_loop_* rollout.* micro_batch_size*
    sandbox_fusion.* overlong_buffer.log
"""
_LOOP: Final = """
    checkpoint_callback_class del_local_ckpt_after_load esi_redundant_time log_val_generations
    ray_wait_register_center_timeout rollout_data_dir use_v1 v1.* validation_data_dir
"""


def _named(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


IGNORED: Final = (
    Ignored(("*_target_",), "it configures parts that Longshore does not have", matters=False),
    Ignored((f"{ACTOR}.clip_ratio_c",), "there is no dual clip for negative advantages", default=3.0),
    Ignored((f"{ACTOR}.entropy_coeff",), "there is no entropy bonus; actor/entropy shows it", (0, 0.0)),
    Ignored((f"{ACTOR}.loss_scale_factor",), "DrGRPO divides by algorithm.maxResponseTokens"),
    Ignored((f"{ACTOR}.shuffle",), "updates take groups shuffled, alike in every attempt", (False,)),
    Ignored((f"{ACTOR}.ppo_micro_batch_size",), "micro-batches are measured in tokens", matters=False),
    Ignored((f"{ACTOR}.ulysses_sequence_parallel_size",),
            "long responses are split by contextParallelSize of the Megatron trainer", (1,), matters=False),
    Ignored((f"{ACTOR}.optim.optimizer", f"{ACTOR}.optim.optimizer_impl"), "the optimizer is AdamW",
            ("AdamW", "torch.optim", "adam")),
    Ignored((f"{ACTOR}.optim.num_cycles",), "Cosine falls once over the whole job", (0.5,)),
    Ignored((f"{ACTOR}.optim.total_training_steps", f"{ACTOR}.optim.zero_indexed_step"),
            "how verl counts the steps of its schedule", matters=False),
    Ignored(_named(f"{ACTOR}.optim", _OPTIMIZER), "how verl sets its optimizer up"),
    Ignored((f"{ACTOR}.fsdp_config.param_offload", f"{ACTOR}.fsdp_config.optimizer_offload"),
            "trainers always move weights and optimizer to the host while engines sample", (True, False),
            matters=False),
    Ignored((f"{ACTOR}.policy_loss.*", f"{ACTOR}.tau_*"), "it belongs to losses that Longshore does not have",
            matters=False),
    Ignored((f"{ACTOR}.checkpoint.*",), "a checkpoint always holds everything that a job continues from",
            matters=False),
    Ignored((f"{ACTOR}.*qat.*", f"{ROLLOUT}.qat", f"{ROLLOUT}.qat.*"), "the trained model is not quantised"),
    Ignored(_named(ACTOR, _UPDATE), "how verl computes the update", matters=False),
    Ignored(("actor_rollout_ref.ref.*", "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout"),
            "how verl runs the reference model and its workers; placement and trainer are fields of the job",
            matters=False),
    Ignored((f"{_MODEL}.lora_rank", f"{_MODEL}.lora.rank"), "every weight is trained, and no adapter", (0,)),
    Ignored((f"{_MODEL}.trust_remote_code", "data.trust_remote_code"), "code of a model repository is not run",
            (False,)),
    Ignored((f"{_MODEL}.enable_gradient_checkpointing", f"{_MODEL}.use_remove_padding"),
            "the trainer chooses automatically", (True, False), matters=False),
    Ignored((f"{_MODEL}.tokenizer_path", f"{_MODEL}.hf_config_path", "data.tokenizer"),
            "tokenizer and configuration are those of the model"),
    Ignored((f"{_MODEL}.override_config.attn_implementation",), "the trainer chooses automatically", matters=False),
    Ignored((f"{_MODEL}.override_config", f"{_MODEL}.override_config.*"),
            "it changes what the model computes, and so the results: write it into the model's config.json"),
    Ignored(_named(_MODEL, _LAYOUT), "how verl loads and lays out the model", matters=False),
    Ignored((f"{ROLLOUT}.name",), "engines are vLLM", ("vllm",), matters=False),
    Ignored((f"{ROLLOUT}.mode",), "engines sample asynchronously", ("async",), matters=False),
    Ignored((f"{ROLLOUT}.top_p", f"{ROLLOUT}.val_kwargs.top_p"),
            "tokens are sampled from the whole distribution, or importance ratios would be wrong", (1, 1.0)),
    Ignored((f"{ROLLOUT}.top_k", f"{ROLLOUT}.val_kwargs.top_k"),
            "tokens are sampled from the whole distribution, or importance ratios would be wrong", (-1, 0)),
    Ignored((f"{ROLLOUT}.do_sample", f"{ROLLOUT}.calculate_log_probs"), "it is always so", (True,)),
    Ignored((f"{ROLLOUT}.ignore_eos",), "a response ends with its end token", (False,)),
    Ignored((f"{ROLLOUT}.multi_turn.*", f"{ROLLOUT}.agent.*", "data.tool_config_path", "data.function_tool_path"),
            "a response is one turn", (False,)),
    Ignored((f"{ROLLOUT}.over_sample_rate",), "choose a strategy that starts more than it needs: TailBatching",
            (0, 0.0)),
    Ignored((f"{ROLLOUT}.pipeline_model_parallel_size", f"{ROLLOUT}.data_parallel_size",
             f"{ROLLOUT}.expert_parallel_size"), "an engine is one tensor-parallel group", (1,), matters=False),
    Ignored((f"{ROLLOUT}.seed",), "algorithm.seed seeds sampling, too", (42,), matters=False),
    Ignored((f"{ROLLOUT}.response_length",), "it is data.max_response_length", matters=False),
    Ignored((f"{ROLLOUT}.quantization", f"{ROLLOUT}.quantization_config_file"), "engines have the trainer's weights"),
    Ignored((f"{ROLLOUT}.enable_rollout_routing_replay",),
            "trainers choose experts themselves, and not as the engines did", (False,)),
    Ignored(_named(ROLLOUT, _ENGINES),
            "how verl runs its engines; arguments of vLLM go into rollout.engine.extraArgs", matters=False),
    Ignored(("data.val_files", "data.val_batch_size", "data.val_max_samples", "data.validation_shuffle"),
            "data.heldOutPrompts keeps prompts of the training data apart and evaluation scores them"),
    Ignored(("data.train_max_samples",), "every row is used; data.where chooses rows", (-1,)),
    Ignored(("data.shuffle",), "prompts are always shuffled", (True,)),
    Ignored(("data.gen_batch_size",), "rollout.strategy decides how many prompts a round starts"),
    Ignored(("data.filter_overlong_prompts", "data.truncation"),
            "prompts that are too long are left out and counted, and none is cut", (True, False, "error")),
    Ignored(("data.custom_cls.*",), "rows are read from JSONL, Parquet or `datasets`"),
    Ignored(("data.image_*", "data.video_*", "data.audio_*", "data.return_multi_modal_inputs",
             "data.mm_processor_kwargs*"), "prompts are text", matters=False),
    Ignored(("data.return_raw_*", "data.return_full_prompt", "data.use_shm", "data.*_workers"),
            "how verl feeds its workers", matters=False),
    Ignored(("algorithm.gamma", "algorithm.lam"), "advantages belong to whole responses, without discount", (1, 1.0)),
    Ignored(("algorithm.use_kl_in_reward",), f"the KL penalty is part of the loss: set {ACTOR}.use_kl_loss", (False,)),
    Ignored(("algorithm.kl_ctrl.*", "algorithm.kl_penalty"), "they belong to the KL penalty in the reward",
            matters=False),
    Ignored(("algorithm.use_pf_ppo",), "responses are not weighted by preference", (False,)),
    Ignored(("algorithm.pf_ppo.*",), "it belongs to use_pf_ppo", matters=False),
    Ignored(("algorithm.filter_groups.max_*",), "a round replaces groups until its batch is complete", (0, 1)),
    Ignored(("algorithm.rollout_correction.loss_type",), "the loss is clipped", ("ppo_clip",)),
    Ignored(("algorithm.rollout_correction.rollout_is_batch_normalize",), "weights are not normalised", (False,)),
    Ignored(("reward.reward_manager.name", "reward_model.reward_manager"),
            "every response is scored as soon as it ends", ("naive", "dapo")),
    Ignored(("reward.reward_kwargs.*", "reward_model.reward_kwargs.*"),
            "they are not passed on; write them into the function"),
    Ignored((*_named("reward", _VERIFIERS),
             *_named("reward_model", _OLD_VERIFIERS),
             "sandbox_fusion.*"),
            "how verl runs its verifiers; see reward.pods, workersPerPod, requestsPerPod and kind Code", matters=False),
    Ignored(("trainer.project_name", "trainer.experiment_name"), "metadata.name is experiment_name, or that of --name",
            matters=False),
    Ignored(("trainer.logger",), "metrics go to TensorBoard files and metrics.jsonl, under verl's names; spec.tracking "
            "sends them to Weights & Biases or MLflow", matters=False),
    Ignored(("trainer.val_before_train",), "the model is always evaluated before and after training", (True,)),
    Ignored(("trainer.val_only",), "a job trains", (False,)),
    Ignored(("trainer.resume_mode",), "a job continues from its newest checkpoint", ("auto",), matters=False),
    Ignored(("trainer.resume_from_path", "trainer.default_local_dir", "trainer.default_hdfs_dir"),
            "checkpoints lie in storage.output of the job", matters=False),
    Ignored(("trainer.critic_warmup", "critic.*", "trainer.max_critic_ckpt_to_keep"), "there is no critic", (0,),
            matters=False),
    Ignored(("trainer.v1.trainer_mode",), "training is synchronous; rollout.strategy decides how", ("sync",)),
    Ignored(("trainer.balance_batch",), "samples are always balanced over replicas", (True,), matters=False),
    Ignored(("trainer.device",), "workers.gpuResourceName says what a GPU is", ("cuda",), matters=False),
    Ignored(_named("trainer", _LOOP),
            "how verl runs the loop", matters=False),
    Ignored(("*.profiler.*", "global_profiler.*"), "`longshore profile` measures a job", matters=False),
    Ignored(("distillation.*",), "there is no teacher", (False,)),
    Ignored(("transfer_queue.*", "skip.*", "ray_kwargs.*", "hydra.*"),
            "it configures parts that Longshore does not have", matters=False),
    Ignored(("defaults", "--config-path", "--config-dir"), COMPOSED),
)  # fmt: skip
"""The first that is about a key counts."""

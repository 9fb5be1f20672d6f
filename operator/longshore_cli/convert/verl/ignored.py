"""Keys of verl without a field."""

from typing import Final

from longshore_cli.convert.mapping import Ignored
from longshore_cli.convert.verl.objective import REWARD_MANAGERS
from longshore_cli.convert.verl.sections import ACTOR, CORRECTION, MEGATRON, MODEL, OPTIM, ROLLOUT, named
from longshore_cli.convert.verl.trainer import COMPOSED

_OPTIMIZER: Final = """
    lr_decay_ratio lr_decay_steps lr_min lr_start min_lr_factor name override_optimizer_config use_* decay_type
"""
_STATE: Final = "exp_avg_dtype exp_avg_sq_dtype main_grads_dtype"
_UPDATE: Final = """
    calculate_* data_loader_seed entropy_* freeze_vision_tower fsdp_config.* load_weight megatron.* pad_to_length
    rollout_n torchtitan.* use_fused_kernels use_prefix_grouper use_remove_padding veomni.*
"""
_LAYOUT: Final = """
    enable_activation_offload exclude_modules external_lib fused_kernel_options.* lora.* lora_* mtp.* target_modules
    tiled_mlp.* use_fused_kernels use_shm
"""
_ENGINES: Final = """
    checkpoint_engine.* cudagraph_capture_sizes disable_log_stats disaggregation.* engine_kwargs.* full_determinism
    layer_name_map.* layered_summon limit_images load_format log_prob_* logprobs_mode moe_* mtp mtp.*
    multi_stage_wake_up n_gpus_per_node nnodes prometheus.* router_config_path scheduling_policy skip_dump_dir
    skip_rollout skip_tokenizer_init trace.* update_weights_bucket_megabytes val_kwargs.*
"""
_VERIFIERS: Final = "num_workers reward_manager.* reward_model.* sandbox_fusion.*"
_OLD_VERIFIERS: Final = """
    enable_resource_pool forward_max_token_len_per_gpu launch_reward_fn_async max_length micro_batch_size* model.*
    n_gpus_per_node nnodes num_workers overlong_buffer.log reward_loop_* rollout.* sandbox_fusion.* strategy
    ulysses_sequence_parallel_size use_dynamic_bsz use_reward_loop
"""
_LOOP: Final = """
    checkpoint_callback_class del_local_ckpt_after_load esi_redundant_time log_val_generations
    ray_wait_register_center_timeout rollout_data_dir use_legacy_worker_impl use_v1 v1.* validation_data_dir
"""


IGNORED: Final = (
    Ignored(("*_target_",), "it configures parts that Longshore does not have", matters=False),
    Ignored((f"{ACTOR}.shuffle",), "updates take groups shuffled, alike in every attempt", (False,)),
    Ignored((f"{ACTOR}.ppo_micro_batch_size",), "micro-batches are measured in tokens", matters=False),
    Ignored((f"{ACTOR}.ulysses_sequence_parallel_size",),
            "long responses are split by contextParallelSize of the Megatron trainer", (1,), matters=False),
    Ignored((f"{OPTIM}.optimizer", f"{OPTIM}.optimizer_impl"), "the optimizer is AdamW",
            ("AdamW", "torch.optim", "adam")),
    Ignored((f"{OPTIM}.num_cycles",), "Cosine falls once over the whole job", (0.5,)),
    Ignored((f"{OPTIM}.total_training_steps", f"{OPTIM}.zero_indexed_step"),
            "how verl counts the steps of its schedule", matters=False),
    Ignored((f"{OPTIM}.lr_warmup_init",), "a warm-up begins at 0", (0, 0.0)),
    Ignored((f"{OPTIM}.weight_decay_incr_style",), "weight decay is constant", ("constant",)),
    Ignored(named(OPTIM, _STATE), "the optimizer's numbers are float32", ("fp32",)),
    Ignored((f"{OPTIM}.use_checkpoint_opt_param_scheduler",), "the schedule is that of the job", (False,)),
    Ignored((f"{OPTIM}.use_precision_aware_optimizer", f"{OPTIM}.use_layer_wise_distributed_optimizer"),
            "how Megatron lays its optimizer out", (False,), matters=False),
    Ignored(named(OPTIM, "muon_* lr_wsd_*"), "they belong to optimizers and schedules that Longshore does not have",
            matters=False),
    Ignored(named(OPTIM, _OPTIMIZER), "how verl sets its optimizer up"),
    Ignored((f"{ACTOR}.fsdp_config.param_offload", f"{ACTOR}.fsdp_config.optimizer_offload"),
            "trainers always move weights and optimizer to the host while engines sample", (True, False),
            matters=False),
    Ignored((f"{ACTOR}.fsdp_config.dtype", f"{MEGATRON}.dtype", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"),
            "layers compute in bfloat16 on GPUs", ("bfloat16", "bf16")),
    Ignored((f"{ACTOR}.fsdp_config.model_dtype", f"{ACTOR}.fsdp_config.mixed_precision*"),
            "weights, gradients and the optimizer's numbers are float32", ("fp32", "float32")),
    Ignored(named(MEGATRON, "override_transformer_config.recompute_* override_transformer_config.attention_backend"),
            "the trainer chooses automatically", matters=False),
    Ignored((f"{MEGATRON}.override_transformer_config*", f"{MEGATRON}.override_mcore_model_config*"),
            "the model is built from its config.json alone"),
    Ignored((f"{ACTOR}.*router_replay.mode",),
            "trainers choose experts themselves; with R3, set trainer.routerReplay and backend Torch", ("disabled",)),
    Ignored((f"{ACTOR}.*router_replay.*",), "it belongs to router_replay.mode", matters=False),
    Ignored((f"{ACTOR}.use_rollout_log_probs",),
            f"what the ratio is relative to is set by {CORRECTION}.bypass_mode", (False,)),
    Ignored((f"{ACTOR}.policy_loss.*",), "it belongs to losses that Longshore does not have",
            matters=False),
    Ignored((f"{ACTOR}.checkpoint.*",), "a checkpoint always holds everything that a job continues from",
            matters=False),
    Ignored((f"{ACTOR}.*qat.*", f"{ROLLOUT}.qat", f"{ROLLOUT}.qat.*"), "the trained model is not quantised"),
    Ignored((f"{ACTOR}.use_torch_compile", f"{ACTOR}.fsdp_config.use_torch_compile"),
            "verl compiles the entropy alone, which is computed in one pass here; trainer.torchCompile compiles layers",
            (True, False), matters=False),
    Ignored((f"{MODEL}.use_liger",), "trainer.torchCompile fuses the same operations", (False,), matters=False),
    Ignored(named(ACTOR, _UPDATE), "how verl computes the update", matters=False),
    Ignored(("actor_rollout_ref.ref.*", "actor_rollout_ref.hybrid_engine", "actor_rollout_ref.nccl_timeout"),
            "how verl runs the reference model and its workers; placement and trainer are fields of the job",
            matters=False),
    Ignored((f"{MODEL}.trust_remote_code", "data.trust_remote_code"), "code of a model repository is not run",
            (False,)),
    Ignored((f"{MODEL}.enable_gradient_checkpointing", f"{MODEL}.use_remove_padding"),
            "the trainer chooses automatically", (True, False), matters=False),
    Ignored((f"{MODEL}.tokenizer_path", f"{MODEL}.hf_config_path", "data.tokenizer"),
            "tokenizer and configuration are those of the model"),
    Ignored((f"{MODEL}.override_config.attn_implementation",), "the trainer chooses automatically", matters=False),
    Ignored((f"{MODEL}.override_config.moe_config.freeze_moe_router",), "every weight is trained", (False,)),
    Ignored((f"{MODEL}.override_config", f"{MODEL}.override_config.*"),
            "it changes what the model computes, and so the results: write it into the model's config.json"),
    Ignored((f"{MODEL}.lora_adapter_path", f"{MODEL}.mtp.enable_train"),
            "every weight of the model is trained, and no other", (False,)),
    Ignored(named(MODEL, _LAYOUT), "how verl loads and lays out the model", matters=False),
    Ignored((f"{ROLLOUT}.name",), "engines are vLLM", ("vllm",), matters=False),
    Ignored((f"{ROLLOUT}.mode",), "engines sample asynchronously", ("async",), matters=False),
    Ignored((f"{ROLLOUT}.top_p",),
            "tokens are sampled from the whole distribution, or importance ratios would be wrong", (1, 1.0)),
    Ignored((f"{ROLLOUT}.top_k",),
            "tokens are sampled from the whole distribution, or importance ratios would be wrong", (-1, 0)),
    Ignored((f"{ROLLOUT}.val_kwargs.top_p", f"{ROLLOUT}.val_kwargs.top_k"),
            "evaluation samples from the whole distribution, too", (1, 1.0, -1, 0), matters=False),
    Ignored((f"{ROLLOUT}.do_sample",), "it is always so", (True,)),
    Ignored((f"{ROLLOUT}.calculate_log_probs",), "it is always so", (True,), matters=False),
    Ignored((f"{ROLLOUT}.ignore_eos",), "a response ends with its end token", (False,)),
    Ignored((f"{ROLLOUT}.agent.num_workers",), "how verl runs its loops", matters=False),
    Ignored((f"{ROLLOUT}.multi_turn.format",), "the chat template decides how calls are written",
            ("hermes", "qwen3_coder")),
    Ignored(named(f"{ROLLOUT}.multi_turn", "use_inference_chat_template tokenization_sanity_check_mode"),
            "tokens of earlier turns are never made again", (False,), matters=False),
    Ignored((f"{ROLLOUT}.multi_turn.*", f"{ROLLOUT}.agent.*", "data.*tool*"),
            "it belongs to verl's agents", (False,)),
    Ignored((f"{ROLLOUT}.over_sample_rate",), "choose a strategy that starts more than it needs: TailBatching",
            (0, 0.0)),
    Ignored((f"{ROLLOUT}.pipeline_model_parallel_size", f"{ROLLOUT}.data_parallel_size",
             f"{ROLLOUT}.expert_parallel_size"), "an engine is one tensor-parallel group", (1,), matters=False),
    Ignored((f"{ROLLOUT}.seed",), "algorithm.seed seeds sampling, too", (42,), matters=False),
    Ignored((f"{ROLLOUT}.quantization_config_file",), "engines choose scales themselves"),
    Ignored((f"{ROLLOUT}.enable_rollout_routing_replay",),
            "trainers choose experts themselves, and not as the engines did", (False,)),
    Ignored(named(ROLLOUT, _ENGINES),
            "how verl runs its engines; arguments of vLLM go into rollout.engine.extraArgs", matters=False),
    Ignored(("data.val_batch_size", "data.val_max_samples", "data.validation_shuffle"),
            "they belong to data.val_files", matters=False),
    Ignored(("data.val_files",),
            "data.heldOutPrompts keeps prompts of the training data apart and evaluation scores them"),
    Ignored(("data.train_max_samples",), "every row is used; data.where chooses rows", (-1,)),
    Ignored(("data.shuffle",), "prompts are always shuffled", (True,)),
    Ignored(("data.filter_overlong_prompts", "data.truncation"),
            "prompts that are too long are left out and counted, and none is cut", (True, False, "error")),
    Ignored(("data.sampler.*",), "prompts are shuffled, and data.sources has weights"),
    Ignored(("data.custom_cls.*", "data.datagen.*"), "rows are read from JSONL, Parquet or `datasets`"),
    Ignored(("data.image_key", "data.video_key", "data.audio_key"), "prompts are text: rows lose what the column holds",
            ("images", "videos", "audios")),
    Ignored(("data.image_*", "data.video_*", "data.audio_*", "data.return_multi_modal_inputs",
             "data.mm_processor_kwargs*"), "prompts are text", matters=False),
    Ignored(("data.return_raw_*", "data.return_full_prompt", "data.use_shm", "data.*_workers"),
            "how verl feeds its workers", matters=False),
    Ignored(("algorithm.use_kl_in_reward",), f"the KL penalty is part of the loss: set {ACTOR}.use_kl_loss", (False,)),
    Ignored(("algorithm.kl_ctrl.*", "algorithm.kl_penalty"), "they belong to the KL penalty in the reward",
            matters=False),
    Ignored(("algorithm.use_pf_ppo",), "responses are not weighted by preference", (False,)),
    Ignored(("algorithm.pf_ppo.*",), "it belongs to use_pf_ppo", matters=False),
    Ignored(("algorithm.filter_groups.max_*",), "a round replaces groups until its batch is complete", matters=False),
    Ignored((f"{CORRECTION}.rollout_is_batch_normalize",), "weights are not normalised", (False,)),
    Ignored((f"{CORRECTION}.rollout_token_veto_threshold",), "no response is rejected for one token: set rollout_rs"),
    Ignored((f"{CORRECTION}.bypass_old_logprob_for_rollout",), "it is an older name of bypass_mode: set that",
            (False,)),
    Ignored((f"{CORRECTION}.use_pure_rollout_correction",), "it is an older name of use_policy_gradient: set that",
            (False,)),
    Ignored(("algorithm.rollout_is*",), f"they are older names of {CORRECTION}.rollout_is…: set those", (False,)),
    Ignored(REWARD_MANAGERS, "there are no other managers than verl's naive and dapo", ("naive", "dapo")),
    Ignored(("*reward_manager.source",), "a reward manager of your own is not run: write it as a function",
            ("register",)),
    Ignored(("*reward_manager.module.path",), "a reward manager of your own is not run: write it as a function"),
    Ignored(("trainer.v1.sampler.custom_sampler.path",), "draws are those of rollout.strategy"),
    Ignored(("*.overlong_buffer_cfg.log",), "penalties are part of the reward", (True, False), matters=False),
    Ignored(("reward.reward_kwargs.*", "reward_model.reward_kwargs.*", "*custom_reward_function.reward_kwargs.*"),
            "they are not passed on; write them into the function"),
    Ignored((*named("reward", _VERIFIERS),
             *named("reward_model", _OLD_VERIFIERS),
             "reward_manager.*", "sandbox_fusion.*"),
            "how verl runs its verifiers; see reward.pods, workersPerPod, requestsPerPod and kind Code", matters=False),
    Ignored(("trainer.project_name", "trainer.experiment_name"), "metadata.name is experiment_name, or that of --name",
            matters=False),
    Ignored(("trainer.logger",), "metrics go to TensorBoard files and metrics.jsonl, under verl's names; spec.tracking "
            "sends them to Weights & Biases or MLflow", matters=False),
    Ignored(("trainer.resume_mode",), "a job continues from its newest checkpoint", ("auto",), matters=False),
    Ignored(("trainer.resume_from_path", "trainer.default_local_dir", "trainer.default_hdfs_dir"),
            "checkpoints lie in storage.output of the job", matters=False),
    Ignored(("trainer.critic_warmup",), "the policy is trained from the first step", (0,)),
    Ignored(("critic.*", "trainer.max_critic_ckpt_to_keep"), "the critic is trained as the policy is, on its GPUs",
            matters=False),
    Ignored(("trainer.v1.trainer_mode",), "training is synchronous; rollout.strategy decides how", ("sync",)),
    Ignored(("trainer.balance_batch",), "samples are always balanced over replicas", (True,), matters=False),
    Ignored(("trainer.device",), "workers.gpuResourceName says what a GPU is", ("cuda",), matters=False),
    Ignored(named("trainer", _LOOP),
            "how verl runs the loop", matters=False),
    Ignored(("*.profiler.*", "global_profiler.*"), "`longshore profile` measures a job", matters=False),
    Ignored(("distillation.*",), "trainers hold the teacher, if there is one", matters=False),
    Ignored(("async_training.*", "rollout.*"),
            "rounds and updates follow each other; rollout.strategy PartialRollout trains on tokens of older weights, "
            "and placement: Disaggregated gives engines GPUs of their own"),
    Ignored(("transfer_queue.*", "skip.*", "ray_kwargs.*", "hydra.*"),
            "it configures parts that Longshore does not have", matters=False),
    Ignored(("defaults", "--config-path", "--config-dir"), COMPOSED),
)  # fmt: skip
"""The first that is about a key counts."""

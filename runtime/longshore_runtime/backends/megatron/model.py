"""A Hugging Face model as Megatron's GPTModel: one pipeline stage, one tensor-parallel shard."""

from typing import Any, Final

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from longshore.api.training import Recompute
from longshore_runtime.backends.hf_mapping.architecture import Architecture, read_architecture
from longshore_runtime.backends.hf_mapping.layouts import padded_vocab_size
from longshore_runtime.backends.losses import NO_REFERENCE, ReferenceTokens
from longshore_runtime.backends.megatron.attention import CausalAttention
from longshore_runtime.backends.megatron.batch import MicroBatch
from longshore_runtime.backends.megatron.vocab_parallel import vocab_parallel_log_probs, vocab_parallel_most_likely
from longshore_runtime.backends.parallel_sizes import ParallelSizes

_RECOMPUTE: Final[dict[Recompute, dict[str, Any]]] = {
    Recompute.NONE: {},
    Recompute.SELECTIVE: {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    Recompute.FULL: {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


class ShardedModel(GPTModel):
    """A model that ends in hidden states; logits are computed for response tokens only, a few at a time."""

    def __init__(
        self,
        config: Any,
        sizes: ParallelSizes,
        device: torch.device,
        dtype: torch.dtype,
        computes_in: torch.dtype,
        recompute: Recompute = Recompute.NONE,
    ) -> None:
        """Build this rank's part of a model, without its weights, which are of type `dtype`."""
        self.architecture = read_architecture(config)
        super().__init__(
            config=_transformer_config(self.architecture, sizes, dtype, computes_in, recompute),
            transformer_layer_spec=_layer_spec(self.architecture),
            vocab_size=padded_vocab_size(self.architecture.vocab_size, sizes.tensor),
            max_sequence_length=self.architecture.max_positions,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=self.architecture.tied,
            position_embedding_type="rope",
        )
        self.rotary_pos_emb.inv_freq = LlamaRotaryEmbedding(config).inv_freq.to(device, dtype, copy=True)
        self.to(device, dtype)

    def response_tokens(
        self, hidden: Tensor, batch: MicroBatch, temperature: float, reference: ReferenceTokens = NO_REFERENCE
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies of all response tokens from hidden states (last stage).

        The log-probabilities are those of `ReferenceTokens.with_targets`.
        """
        order = batch.numbers[batch.predicts]
        log_probs, entropies = vocab_parallel_log_probs(
            hidden.transpose(0, 1)[batch.predicts],
            self._head,
            reference.with_targets(batch.targets)[order],
            temperature,
            self.pg_collection.tp,
            self.architecture.vocab_size,
        )
        return self._in_order(log_probs, order, batch), self._in_order(entropies, order, batch)

    def most_likely_tokens(
        self, hidden: Tensor, batch: MicroBatch, temperature: float, num_tokens: int, num_ids: int
    ) -> ReferenceTokens:
        """Compute the most likely of the first `num_ids` tokens in the place of all response tokens (last stage)."""
        order = batch.numbers[batch.predicts]
        ids, log_probs = vocab_parallel_most_likely(
            hidden.transpose(0, 1)[batch.predicts],
            self._head,
            temperature,
            self.pg_collection.tp,
            self.architecture.vocab_size,
            num_tokens,
            num_ids,
        )
        return ReferenceTokens.on_host(*(self._in_order(values, order, batch) for values in (ids, log_probs)))

    def _in_order(self, values: Tensor, order: Tensor, batch: MicroBatch) -> Tensor:
        everything = values.new_zeros(batch.num_response_tokens, *values.shape[1:]).index_put((order,), values)
        summed: Tensor = _SumOverRanks.apply(everything, self.pg_collection.cp)  # type: ignore[no-untyped-call]
        return summed

    def _head(self, hidden: Tensor) -> Tensor:
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits: Tensor = self.output_layer(hidden.unsqueeze(1), weight=weight)[0].squeeze(1)
        return logits

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states


class _SumOverRanks(torch.autograd.Function):
    """Sum over context-parallel ranks; each rank gets the gradient of its own values, as all have the same loss."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
        values = values.clone()
        if group.size() > 1:
            torch.distributed.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def data_parallel(model: ShardedModel) -> DistributedDataParallel:
    """Wrap a model: gradients add up in buffers of the parameters' precision, until `finalize_model_grads`."""
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=False, overlap_param_gather=False, bucket_size=None
    )
    return DistributedDataParallel(model.config, config, model)


def _transformer_config(
    model: Architecture, sizes: ParallelSizes, dtype: torch.dtype, computes_in: torch.dtype, recompute: Recompute
) -> TransformerConfig:
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_epsilon,
        qk_layernorm=model.qk_norm,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        context_parallel_size=sizes.context,
        params_dtype=dtype,
        # What layers return: under autocast, residuals are bf16 too. A stage receives into memory of this type.
        pipeline_dtype=computes_in,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # There are no experts, but the default refuses variable lengths.
        # Weights come from a checkpoint, but a model that skips its initialisation forgets which of them are sharded.
        use_cpu_initialization=True,
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        # Sums of token losses, divided by nobody but the caller of `update`.
        calculate_per_token_loss=True,
        # Fusions need CUDA extensions that the wheel does not have.
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        **_RECOMPUTE[recompute],
    )


def _layer_spec(model: Architecture) -> Any:
    spec = get_gpt_layer_local_spec(qk_layernorm=model.qk_norm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    return spec


def _leave(weight: Tensor) -> Tensor:
    return weight

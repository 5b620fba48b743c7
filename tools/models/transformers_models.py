"""Models of transformers with their hand-written ("eager") attention, which they use to return attention weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tools.models.row import Row, tokens

_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "max_position_embeddings": 32,
}  # fmt: skip
_HANDED_ON = "its layers hand the weights on to a model that makes its own cache; without a cache they do not"
_IMAGE = {"image_size": 16, "patch_size": 4}

Inputs = Callable[[], Any]


def _row(
    name: str, config: str, inputs: Inputs = tokens, expects: tuple[str, ...] = ("AF101",), note: str = "",
    **options: Any,
) -> Row:  # fmt: skip
    def make() -> nn.Module:
        made = getattr(transformers, config)(attn_implementation="eager", **options)
        return getattr(transformers, name)(made)

    return Row(name, "transformers", make, inputs, expects, note)


def _text(name: str, config: str, expects: tuple[str, ...] = ("AF101",), note: str = "", **options: Any) -> Row:
    return _row(name, config, tokens, expects, note, **{"vocab_size": 50, **_SPECIAL, **options})


def _vision(name: str, config: str, expects: tuple[str, ...] = ("AF101",), note: str = "", **options: Any) -> Row:
    return _row(name, config, _images, expects, note, **{**_IMAGE, **options})


def _padded() -> dict[str, Tensor]:
    """Tokens, with padding at the end of the first sequence."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def _images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def _both_sides() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(length=5)}


def _images_and_text() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "input_ids": tokens()}


def _clip() -> nn.Module:
    sides = {**_PLAIN, "attention_dropout": 0.0}
    config = transformers.CLIPConfig(
        text_config={**sides, "vocab_size": 50, "max_position_embeddings": 32, **_SPECIAL},
        vision_config={**sides, **_IMAGE}, projection_dim=32, attn_implementation="eager",
    )  # fmt: skip
    return transformers.CLIPModel(config)


def _sam() -> nn.Module:
    vision = {
        **_PLAIN, "output_channels": 16, "image_size": 32, "patch_size": 4, "window_size": 4,
        "global_attn_indexes": [1], "mlp_dim": 48, "num_pos_feats": 8,
    }  # fmt: skip
    prompts = {
        "hidden_size": 16,
        "image_size": 32,
        "patch_size": 4,
        "image_embedding_size": 8,
        "mask_input_channels": 4,
    }
    decoder = {
        "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "mlp_dim": 24, "iou_head_hidden_dim": 16,
    }  # fmt: skip
    config = transformers.SamConfig(
        vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=decoder, attn_implementation="eager",
    )  # fmt: skip
    return transformers.SamModel(config)


def _sam_inputs() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, 32, 32), "input_points": torch.tensor([[[[8.0, 9.0], [20.0, 5.0]]]])}


def _detr() -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"],
    )  # fmt: skip
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, use_pretrained_backbone=False,
        **{k: v for k, v in _BART.items() if k != "max_position_embeddings"}, num_queries=5,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.DetrModel(config)


def _audio() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 400)}


def _perceiver() -> dict[str, Tensor]:
    return {"inputs": torch.randn(2, 7, 24)}


_DETR_INPUTS = lambda: {"pixel_values": torch.randn(1, 3, 32, 32)}

ROWS = (
    _text("BertModel", "BertConfig", **_PLAIN, **_NO_DROPOUT),
    _text("RobertaModel", "RobertaConfig", **_PLAIN, **_NO_DROPOUT),
    _text(
        "DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0,
        attention_dropout=0.0,
    ),
    _text("AlbertModel", "AlbertConfig", embedding_size=16, **_PLAIN, **_NO_DROPOUT),
    _text("ElectraModel", "ElectraConfig", embedding_size=16, **_PLAIN, **_NO_DROPOUT),
    _text(
        "DebertaV2Model", "DebertaV2Config", **_PLAIN, **_NO_DROPOUT, relative_attention=True, expects=("AF102",),
        pos_att_type=["p2c", "c2p"], max_position_embeddings=32,
    ),
    _text("FunnelModel", "FunnelConfig", block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48,
          hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0),
    _text("XLNetModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=48, dropout=0.0, expects=("AF203",),
          note="what it adds to the scores is computed from the keys"),
    _text("LongformerModel", "LongformerConfig", **_PLAIN, **_NO_DROPOUT, attention_window=4, expects=("AF203",),
          note="its attention is made of windows that overlap"),
    _text("BigBirdModel", "BigBirdConfig", **_PLAIN, **_NO_DROPOUT, attention_type="original_full"),
    _row("ModernBertModel", "ModernBertConfig", _padded, **_PLAIN, **_SPECIAL, vocab_size=50, cls_token_id=1,
         sep_token_id=2, local_attention=4, global_attn_every_n_layers=2),
    _text("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=32, attn_pdrop=0.0,
          embd_pdrop=0.0, resid_pdrop=0.0),
    _text("GPTNeoForCausalLM", "GPTNeoConfig", expects=("AF102",), note=_HANDED_ON,
          hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48,
          attention_types=[[["global", "local"], 1]], window_size=4, embed_dropout=0.0, attention_dropout=0.0,
          resid_dropout=0.0, max_position_embeddings=32),
    _text("GPTNeoXForCausalLM", "GPTNeoXConfig", **_PLAIN, hidden_dropout=0.0, attention_dropout=0.0),
    _text("GPTJForCausalLM", "GPTJConfig", expects=("AF102",), note=_HANDED_ON,
          n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=32,
          attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
    _text("OPTForCausalLM", "OPTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48,
          word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0, max_position_embeddings=32),
    _text("BloomForCausalLM", "BloomConfig", expects=(), note=_HANDED_ON,
          hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0,
          attention_dropout=0.0),
    _text("FalconForCausalLM", "FalconConfig", expects=("AF102",), note=_HANDED_ON,
          hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
          hidden_dropout=0.0, attention_dropout=0.0),
    _text("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    _row("MistralForCausalLM", "MistralConfig", _padded, vocab_size=50, **_GROUPED, **_SPECIAL, sliding_window=4),
    _text("MixtralForCausalLM", "MixtralConfig", expects=("AF102", "AF303"),
          **_GROUPED, num_local_experts=3, num_experts_per_tok=2),
    _text("Qwen2ForCausalLM", "Qwen2Config", **_GROUPED),
    _text("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=8),
    _text("GemmaForCausalLM", "GemmaConfig", **_GROUPED, head_dim=8),
    _text("Gemma2ForCausalLM", "Gemma2Config", **_GROUPED, head_dim=8, sliding_window=4, query_pre_attn_scalar=8,
          expects=("AF303",), note="its scores are soft-capped, for which torch has no kernel"),
    _text("Gemma3ForCausalLM", "Gemma3TextConfig", **_GROUPED, head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    _text("Phi3ForCausalLM", "Phi3Config", **_GROUPED),
    _text("CohereForCausalLM", "CohereConfig", **_GROUPED),
    _text("Olmo2ForCausalLM", "Olmo2Config", **_GROUPED),
    _text("StableLmForCausalLM", "StableLmConfig", **_GROUPED, hidden_dropout=0.0, attention_dropout=0.0),
    _text("Starcoder2ForCausalLM", "Starcoder2Config", **_GROUPED, residual_dropout=0.0, embedding_dropout=0.0),
    _row("T5Model", "T5Config", _both_sides, vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
         dropout_rate=0.0),
    _row("BartModel", "BartConfig", _both_sides, vocab_size=50, **_BART),
    _row("MBartModel", "MBartConfig", _both_sides, vocab_size=50, **_BART),
    _row("PegasusModel", "PegasusConfig", _both_sides, vocab_size=50, **_BART),
    _vision("ViTModel", "ViTConfig", **_PLAIN, **_NO_DROPOUT),
    _vision("DeiTModel", "DeiTConfig", **_PLAIN, **_NO_DROPOUT),
    _vision("BeitModel", "BeitConfig", **_PLAIN, **_NO_DROPOUT, drop_path_rate=0.0, use_relative_position_bias=True),
    _vision("SwinModel", "SwinConfig", embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=2, drop_path_rate=0.0,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    Row("CLIPModel", "transformers", _clip, _images_and_text),
    Row("SamModel", "transformers", _sam, _sam_inputs),
    Row("DetrModel", "transformers", _detr, _DETR_INPUTS),
    _row("WhisperModel", "WhisperConfig", lambda: {"input_features": torch.randn(1, 8, 24),
         "decoder_input_ids": tokens(batch=1)}, vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2,
         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, dropout=0.0,
         attention_dropout=0.0, activation_dropout=0.0, num_mel_bins=8, max_source_positions=12,
         max_target_positions=32, **_SPECIAL),
    _row("Wav2Vec2Model", "Wav2Vec2Config", _audio, **_PLAIN, hidden_dropout=0.0, attention_dropout=0.0,
         activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, conv_dim=(16, 16), conv_stride=(5, 4),
         conv_kernel=(10, 5), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, apply_spec_augment=False),
    _row("PerceiverModel", "PerceiverConfig", _perceiver, num_latents=5, d_latents=32, d_model=24, num_blocks=1,
         num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4,
         attention_probs_dropout_prob=0.0),
    _text("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=4, expects=("AF202",),
          note="no attention"),
    _text("RwkvForCausalLM", "RwkvConfig", hidden_size=32, attention_hidden_size=32, num_hidden_layers=2,
          intermediate_size=48, context_length=32, expects=(), note="no attention"),
)  # fmt: skip

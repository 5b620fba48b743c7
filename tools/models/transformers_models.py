"""Models of transformers with their hand-written ("eager") attention, which they use to return attention weights."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from tools.models.row import Row, tokens
from tools.models.transformers_rows import (
    BART,
    GROUPED,
    HANDED_ON,
    IMAGE,
    NO_DROPOUT,
    PLAIN,
    SPECIAL,
    audio,
    both_sides,
    images_and_text,
    padded_tokens,
    row,
    text,
    vision,
)


def _clip() -> nn.Module:
    sides = {**PLAIN, "attention_dropout": 0.0}
    config = transformers.CLIPConfig(
        text_config={**sides, "vocab_size": 50, "max_position_embeddings": 32, **SPECIAL},
        vision_config={**sides, **IMAGE}, projection_dim=32, attn_implementation="eager",
    )  # fmt: skip
    return transformers.CLIPModel(config)


def _sam() -> nn.Module:
    vision = {
        **PLAIN, "output_channels": 16, "image_size": 32, "patch_size": 4, "window_size": 4,
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
        **{k: v for k, v in BART.items() if k != "max_position_embeddings"}, num_queries=5,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.DetrModel(config)


def _perceiver() -> dict[str, Tensor]:
    return {"inputs": torch.randn(2, 7, 24)}


_DETR_INPUTS = lambda: {"pixel_values": torch.randn(1, 3, 32, 32)}

ROWS = (
    text("BertModel", "BertConfig", **PLAIN, **NO_DROPOUT),
    text("RobertaModel", "RobertaConfig", **PLAIN, **NO_DROPOUT),
    text(
        "DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0,
        attention_dropout=0.0,
    ),
    text("AlbertModel", "AlbertConfig", embedding_size=16, **PLAIN, **NO_DROPOUT),
    text("ElectraModel", "ElectraConfig", embedding_size=16, **PLAIN, **NO_DROPOUT),
    text(
        "DebertaV2Model", "DebertaV2Config", **PLAIN, **NO_DROPOUT, relative_attention=True, expects=("AF102",),
        pos_att_type=["p2c", "c2p"], max_position_embeddings=32,
    ),
    text("FunnelModel", "FunnelConfig", block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48,
          hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0),
    text("XLNetModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=48, dropout=0.0, expects=("AF203",),
          note="what it adds to the scores is computed from the keys"),
    text("LongformerModel", "LongformerConfig", **PLAIN, **NO_DROPOUT, attention_window=4, expects=("AF203",),
          note="its attention is made of windows that overlap"),
    text("BigBirdModel", "BigBirdConfig", **PLAIN, **NO_DROPOUT, attention_type="original_full"),
    row("ModernBertModel", "ModernBertConfig", padded_tokens, **PLAIN, **SPECIAL, vocab_size=50, cls_token_id=1,
         sep_token_id=2, local_attention=4, global_attn_every_n_layers=2),
    text("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=32, attn_pdrop=0.0,
          embd_pdrop=0.0, resid_pdrop=0.0),
    text("GPTNeoForCausalLM", "GPTNeoConfig", expects=("AF102",), note=HANDED_ON,
          hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48,
          attention_types=[[["global", "local"], 1]], window_size=4, embed_dropout=0.0, attention_dropout=0.0,
          resid_dropout=0.0, max_position_embeddings=32),
    text("GPTNeoXForCausalLM", "GPTNeoXConfig", **PLAIN, hidden_dropout=0.0, attention_dropout=0.0),
    text("GPTJForCausalLM", "GPTJConfig", expects=("AF102",), note=HANDED_ON,
          n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=32,
          attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
    text("OPTForCausalLM", "OPTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48,
          word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0, max_position_embeddings=32),
    text("BloomForCausalLM", "BloomConfig", expects=(), note=HANDED_ON,
          hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0,
          attention_dropout=0.0),
    text("FalconForCausalLM", "FalconConfig", expects=("AF102",), note=HANDED_ON,
          hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
          hidden_dropout=0.0, attention_dropout=0.0),
    text("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    row("MistralForCausalLM", "MistralConfig", padded_tokens, vocab_size=50, **GROUPED, **SPECIAL, sliding_window=4),
    text("MixtralForCausalLM", "MixtralConfig", expects=("AF101", "AF303"),
          **GROUPED, num_local_experts=3, num_experts_per_tok=2),
    text("Qwen2ForCausalLM", "Qwen2Config", **GROUPED),
    text("Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=8),
    text("GemmaForCausalLM", "GemmaConfig", **GROUPED, head_dim=8),
    text("Gemma2ForCausalLM", "Gemma2Config", **GROUPED, head_dim=8, sliding_window=4, query_pre_attn_scalar=8,
          expects=("AF303",), note="its scores are soft-capped, for which torch has no kernel"),
    text("Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED, head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    text("Phi3ForCausalLM", "Phi3Config", **GROUPED),
    text("CohereForCausalLM", "CohereConfig", **GROUPED),
    text("Olmo2ForCausalLM", "Olmo2Config", **GROUPED),
    text("StableLmForCausalLM", "StableLmConfig", **GROUPED, hidden_dropout=0.0, attention_dropout=0.0),
    text("Starcoder2ForCausalLM", "Starcoder2Config", **GROUPED, residual_dropout=0.0, embedding_dropout=0.0),
    row("T5Model", "T5Config", both_sides, vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
         dropout_rate=0.0),
    row("BartModel", "BartConfig", both_sides, vocab_size=50, **BART),
    row("MBartModel", "MBartConfig", both_sides, vocab_size=50, **BART),
    row("PegasusModel", "PegasusConfig", both_sides, vocab_size=50, **BART),
    vision("ViTModel", "ViTConfig", **PLAIN, **NO_DROPOUT),
    vision("DeiTModel", "DeiTConfig", **PLAIN, **NO_DROPOUT),
    vision("BeitModel", "BeitConfig", **PLAIN, **NO_DROPOUT, drop_path_rate=0.0, use_relative_position_bias=True),
    vision("SwinModel", "SwinConfig", embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=2, drop_path_rate=0.0,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    Row("CLIPModel", "transformers", _clip, images_and_text),
    Row("SamModel", "transformers", _sam, _sam_inputs),
    Row("DetrModel", "transformers", _detr, _DETR_INPUTS),
    row("WhisperModel", "WhisperConfig", lambda: {"input_features": torch.randn(1, 8, 24),
         "decoder_input_ids": tokens(batch=1)}, vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2,
         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, dropout=0.0,
         attention_dropout=0.0, activation_dropout=0.0, num_mel_bins=8, max_source_positions=12,
         max_target_positions=32, **SPECIAL),
    row("Wav2Vec2Model", "Wav2Vec2Config", audio, **PLAIN, hidden_dropout=0.0, attention_dropout=0.0,
         activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, conv_dim=(16, 16), conv_stride=(5, 4),
         conv_kernel=(10, 5), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, apply_spec_augment=False),
    row("PerceiverModel", "PerceiverConfig", _perceiver, num_latents=5, d_latents=32, d_model=24, num_blocks=1,
         num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4,
         attention_probs_dropout_prob=0.0),
    text("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=4, expects=("AF202",),
          note="no attention"),
    text("RwkvForCausalLM", "RwkvConfig", hidden_size=32, attention_hidden_size=32, num_hidden_layers=2,
          intermediate_size=48, context_length=32, expects=(), note="no attention"),
)  # fmt: skip

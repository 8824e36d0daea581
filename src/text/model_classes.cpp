#include "model_classes.h"

#include <array>

namespace titan {
namespace {

struct ClassOfModels {
  std::string_view name;
  std::string_view models;  // each between spaces
};

constexpr std::array kClassesOfModels = {
    ClassOfModels{kGenericClass,
                  " EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5"
                  " ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr"
                  " got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared"
                  " h2ovl_chat hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear"
                  " kosmos-2 llava llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7"
                  " minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 mixtral modernbert"
                  " modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid"
                  " omniasr opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral"
                  " pocket_tts smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl "},
    ClassOfModels{"Qwen2Tokenizer",
                  " audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr"
                  " moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe"
                  " qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice "},
    ClassOfModels{"BertTokenizer",
                  " align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino"
                  " layoutlm megatron-bert mm-grounding-dino nomic_bert squeezebert tvp vilt visual_bert "},
    ClassOfModels{"GPT2Tokenizer",
                  " blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo"
                  " jais2 opt phi starcoder2 "},
    ClassOfModels{"CLIPTokenizer",
                  " aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip "},
    ClassOfModels{"GemmaTokenizer",
                  " diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2"
                  " t5gemma zaya "},
    ClassOfModels{"RobertaTokenizer",
                  " bart bridgetower clap data2vec-text ibert lilt longformer mra roberta roberta-prelayernorm "},
    ClassOfModels{"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    ClassOfModels{"ParakeetTokenizer",
                  " granite_speech5_ctc nemotron3_5_asr nemotron_asr_streaming omniasr_ctc parakeet_ctc parakeet_rnnt"
                  " parakeet_tdt "},
    ClassOfModels{"Wav2Vec2CTCTokenizer",
                  " data2vec-audio hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer "},
    ClassOfModels{"XLMRobertaTokenizer", " gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod "},
    ClassOfModels{"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "},
    ClassOfModels{"T5Tokenizer", " mt5 musicgen musicgen_melody switch_transformers t5 "},
    ClassOfModels{"CohereTokenizer", " aya_vision cohere cohere2 "},
    ClassOfModels{"AlbertTokenizer", " albert yoso "},
    ClassOfModels{"EsmcTokenizer", " esmc esmfold2 "},
    ClassOfModels{"LasrTokenizer", " lasr_ctc lasr_encoder "},
    ClassOfModels{"LlamaTokenizer", " idefics idefics2 "},
    ClassOfModels{"NougatTokenizer", " nougat pp_formulanet "},
    ClassOfModels{"SeamlessM4TTokenizer", " seamless_m4t seamless_m4t_v2 "},
    ClassOfModels{"BartTokenizer", " florence2 "},
    ClassOfModels{"BertGenerationTokenizer", " bert-generation "},
    ClassOfModels{"BigBirdTokenizer", " big_bird "},
    ClassOfModels{"BioGptTokenizer", " biogpt "},
    ClassOfModels{"BlenderbotSmallTokenizer", " blenderbot-small "},
    ClassOfModels{"BlenderbotTokenizer", " blenderbot "},
    ClassOfModels{"CTRLTokenizer", " ctrl "},
    ClassOfModels{"CamembertTokenizer", " camembert "},
    ClassOfModels{"CanineTokenizer", " canine "},
    ClassOfModels{"ClvpTokenizer", " clvp "},
    ClassOfModels{"CpmAntTokenizer", " cpmant "},
    ClassOfModels{"DPRQuestionEncoderTokenizer", " dpr "},
    ClassOfModels{"DebertaTokenizer", " deberta "},
    ClassOfModels{"DebertaV2Tokenizer", " deberta-v2 "},
    ClassOfModels{"DiaTokenizer", " dia "},
    ClassOfModels{"EsmTokenizer", " esm "},
    ClassOfModels{"FNetTokenizer", " fnet "},
    ClassOfModels{"FSMTTokenizer", " fsmt "},
    ClassOfModels{"FlaubertTokenizer", " flaubert "},
    ClassOfModels{"FunnelTokenizer", " funnel "},
    ClassOfModels{"GPTNeoXJapaneseTokenizer", " gpt_neox_japanese "},
    ClassOfModels{"GPTSw3Tokenizer", " gpt-sw3 "},
    ClassOfModels{"LEDTokenizer", " led "},
    ClassOfModels{"LayoutLMv2Tokenizer", " layoutlmv2 "},
    ClassOfModels{"LayoutLMv3Tokenizer", " layoutlmv3 "},
    ClassOfModels{"LayoutXLMTokenizer", " layoutxlm "},
    ClassOfModels{"LukeTokenizer", " luke "},
    ClassOfModels{"LxmertTokenizer", " lxmert "},
    ClassOfModels{"M2M100Tokenizer", " m2m_100 "},
    ClassOfModels{"MBartTokenizer", " mbart "},
    ClassOfModels{"MPNetTokenizer", " mpnet "},
    ClassOfModels{"MarianTokenizer", " marian "},
    ClassOfModels{"MarkupLMTokenizer", " markuplm "},
    ClassOfModels{"MgpstrTokenizer", " mgp-str "},
    ClassOfModels{"MobileBertTokenizer", " mobilebert "},
    ClassOfModels{"MvpTokenizer", " mvp "},
    ClassOfModels{"NllbTokenizer", " nllb-moe "},
    ClassOfModels{"OpenAIGPTTokenizer", " openai-gpt "},
    ClassOfModels{"PLBartTokenizer", " plbart "},
    ClassOfModels{"PegasusTokenizer", " pegasus "},
    ClassOfModels{"PerceiverTokenizer", " perceiver "},
    ClassOfModels{"ProphetNetTokenizer", " prophetnet "},
    ClassOfModels{"RagTokenizer", " rag "},
    ClassOfModels{"ReformerTokenizer", " reformer "},
    ClassOfModels{"RemBertTokenizer", " rembert "},
    ClassOfModels{"RoCBertTokenizer", " roc_bert "},
    ClassOfModels{"RoFormerTokenizer", " roformer "},
    ClassOfModels{"Siglip2Tokenizer", " siglip2 "},
    ClassOfModels{"SiglipTokenizer", " siglip "},
    ClassOfModels{"Speech2TextTokenizer", " speech_to_text "},
    ClassOfModels{"SpeechT5Tokenizer", " speecht5 "},
    ClassOfModels{"SplinterTokenizer", " splinter "},
    ClassOfModels{"TapasTokenizer", " tapas "},
    ClassOfModels{"Tipsv2Tokenizer", " tipsv2 "},
    ClassOfModels{"UdopTokenizer", " udop "},
    ClassOfModels{"VideoPrismTokenizer", " videoprism "},
    ClassOfModels{"VitsTokenizer", " vits "},
    ClassOfModels{"WhisperTokenizer", " whisper "},
    ClassOfModels{"XGLMTokenizer", " xglm "},
    ClassOfModels{"XLMTokenizer", " xlm "},
    ClassOfModels{"XLNetTokenizer", " xlnet "},
};

/// Models whose published files name a wrong class.
constexpr std::string_view kMisnamedModels =
    " arctic camembertv2-base chatlm cohere_asr ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax"
    " hyperclovax_vision_v2 hyperclovax_vlm internlm2 internlm3 iquestcoder jamba llava llava_next minicpm3 minicpmv"
    " minimax_m2 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 opencua openvla paddleocr_vl phi3 phi3_v"
    " phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp siglip2 smolvlm step3_vl vipllava ";

/// The other models, for which transformers has no class of its own.
constexpr std::string_view kModelsWithoutClass =
    " afmoe aimv2_text_model aimv2_vision_model align_text_model align_vision_model altclip altclip_text_model"
    " altclip_vision_model apertus apertus1p5 apertus1p5_text apertus1p5_vision_tokenizer arcee aria_text"
    " audio-spectrogram-transformer audioflamingo3_encoder autoformer axk1 axk2 bailing_hybrid bamba barthez bartpho"
    " beit bert-japanese bertweet bit bitnet blip_2_qformer blip_2_vision_model blip_text_model blip_vision_model"
    " bloom blt blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher bridgetower_text_model"
    " bridgetower_vision_model byt5 canary_decoder chameleon chameleon_vqgan chinese_clip_text_model"
    " chinese_clip_vision_model chmv2 clap_audio_model clap_text_model clip_text_model clip_vision_model"
    " clipseg_text_model clipseg_vision_model clvp_decoder clvp_encoder code_llama cohere2_moe cohere2_vision"
    " cohere_compass cohere_compass_text cohere_compass_vision colmodernvbert colpali conditional_detr convnext"
    " convnextv2 cosmos3_edge cosmos3_edge_text cosmos3_edge_vision cpm csm csm_depth_decoder_model cvt cwm d_fine"
    " dab-detr dac data2vec-vision decision_transformer deepseek_ocr2 deepseek_ocr2_encoder"
    " deepseek_ocr2_sam_vision_model deepseek_ocr2_text deepseek_ocr2_vision deepseek_v2 deepseek_v3 deepseek_v32"
    " deepseek_v4 deepseek_vl deepseek_vl_hybrid deformable_detr deimv2 deit depth_anything depth_pro detr"
    " dia_decoder dia_encoder diffllama diffusion_gemma_text dinat dinov2 dinov2_with_registers dinov3_convnext"
    " dinov3_vit doge donut-swin dory dots1 dots3_note_audio_encoder dots3_note_text dots3_note_vision_encoder dpt"
    " edgetam edgetam_mask_decoder edgetam_prompt_encoder edgetam_video edgetam_video_mask_decoder"
    " edgetam_video_prompt_encoder edgetam_vision_model efficientloftr efficientnet embedding_gemma2"
    " embedding_gemma2_text emu3_text_model emu3_vqgan encodec encoder-decoder eomt eomt_dinov3 ernie4_5_vl_moe"
    " ernie4_5_vl_moe_text ernie4_5_vl_moe_vision eurobert evolla exaone exaone4 exaone4_5 exaone4_5_vision"
    " exaone_moe falcon falcon_h1 fast_vlm fastspeech2_conformer fastspeech2_conformer_hifigan"
    " fastspeech2_conformer_with_hifigan flava_image_codebook flava_image_model flava_multimodal_model"
    " flava_text_model flint florence_vision focalnet fun_asr_nano_encoder gemma3n_audio gemma3n_vision gemma4"
    " gemma4_assistant gemma4_audio gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_audio"
    " gemma4_unified_text gemma4_unified_vision gemma4_vision git_vision_model glm46v glm4v_moe_text"
    " glm4v_moe_vision glm4v_text glm4v_vision glm5_next glm5_next_text glm5_next_vision glm_image_text"
    " glm_image_vision glm_image_vqmodel glm_moe_dsa glm_ocr glm_ocr_text glm_ocr_vision glmasr_encoder glmga glpn"
    " got_ocr2_vision gpt_oss granite4_vision granite4_vision_text granite_docling granite_docling_text"
    " granite_docling_vision granite_speech granite_speech5_encoder granite_speech_encoder granite_speech_plus"
    " granite_speech_plus_encoder granite_swa granitemoe_swa groupvit_text_model groupvit_vision_model helium"
    " herbert hgnet_v2 hiera higgs_audio_v2 higgs_audio_v2_tokenizer hrm_text hunyuan_v1_dense hunyuan_v1_moe"
    " hunyuan_vl_text hunyuan_vl_vision hy_v3 hy_v4 hy_v4_vl hy_v4_vl_text hy_v4_vl_vision idefics2_perceiver"
    " idefics2_vision idefics3 idefics3_vision idefics_perciever idefics_vision ijepa imagegpt informer inkling2"
    " inkling2_loop inkling2_loop_text inkling2_text inkling2_vision inkling_audio inkling_mm_model inkling_text"
    " inkling_vision instructblip_qformer instructblip_vision_model instructblipvideo_qformer"
    " instructblipvideo_vision_model internvl_vision janus janus_vision_model janus_vqgan jetmoe jev kimi_k25_vision"
    " kolibri1 kosmos-2.5 kosmos_2_5_text_model kosmos_2_5_vision_model kosmos_2_text_model kosmos_2_vision_model"
    " kyutai_speech_to_text laguna lara_mini levit lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lfm3_vl_vision lightglue llama"
    " llama4 llama4_text llama4_vision_model llava_next_video llava_onevision longcat_flash longt5 lw_detr"
    " lw_detr_vit mask2former maskformer maskformer-swin mbart50 mega mellum metaclip_2_text_model"
    " metaclip_2_vision_model mimi mimi_decoder mimi_encoder minicpm_ocr_vision minicpmv4_6_vision"
    " minicpmv4_7_vision minimax minimax_m3_vl minimax_m3_vl_text minimax_m3_vl_vision mistral4 mistral_large4_text"
    " mlcd mlcd_vision_model mllama mllama_text_model mllama_vision_model mluke mobilenet_v1 mobilenet_v2 mobilevit"
    " mobilevitv2 modernvbert molmo2_adapter molmo2_text molmo2_vision moonshine moonshine_streaming"
    " moonshine_streaming_encoder moshi moshi_depth moss_transcribe_diarize_audio muse_glimmer"
    " muse_glimmer_assistant muse_glimmer_text muse_glimmer_vision muse_spark muse_spark_audio muse_spark_text"
    " muse_spark_vision musicflamingo musicgen_decoder musicgen_melody_decoder myt5 nanochat"
    " nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio nemotron3_5_transcribe_word_timestamp"
    " nemotron3_diarization nemotron3_diarization_audio nemotron_asr_streaming_encoder nemotron_h nemotron_h_omni"
    " neomme neucodec nezha nllb omniasr_audio openai_privacy_filter ovis2_vision owlv2_text_model"
    " owlv2_vision_model owlvit_text_model owlvit_vision_model paddleocr_vl_text paddleocr_vl_vision paligemma"
    " parakeet_encoder patchtsmixer patchtst pe_audio pe_audio_encoder pe_audio_video pe_audio_video_encoder"
    " pe_video pe_video_encoder perception_lm phi4_multimodal phi4_multimodal_audio phi4_multimodal_vision phobert"
    " pi0 pix2struct_text_model pix2struct_vision_model pixio pocket_tts_audio_tokenizer"
    " pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder poolformer pop2piano pp_chart2table"
    " pp_chart2table_vision pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_formulanet_text pp_formulanet_vision"
    " pp_lcnet pp_lcnet_v3 pp_lcnet_v4 pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det"
    " pp_ocrv5_server_rec pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec"
    " prompt_depth_anything pvt pvt_v2 qdqbert qianfan_ocr_vision qwen2_5_omni_audio_encoder qwen2_5_omni_bigvgan"
    " qwen2_5_omni_dit qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_omni_thinker qwen2_5_omni_token2wav"
    " qwen2_5_omni_vision_encoder qwen2_5_vl_text qwen2_5_vl_vision qwen2_audio_encoder qwen2_vl_text"
    " qwen2_vl_vision qwen3_5_moe_vision qwen3_5_vision qwen3_asr_encoder qwen3_omni_moe_audio_encoder"
    " qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_omni_moe_thinker"
    " qwen3_omni_moe_vision_encoder qwen3_vl_moe_text qwen3_vl_moe_vision qwen3_vl_text qwen3_vl_vision"
    " qwen4_exp_text qwen4_exp_vision radio realm regnet resnet retribert rf_detr rf_detr_dinov2 rt_detr"
    " rt_detr_resnet rt_detr_v2 sam sam2 sam2_hiera_det_model sam2_mask_decoder sam2_prompt_encoder sam2_video"
    " sam2_video_mask_decoder sam2_video_prompt_encoder sam2_vision_model sam3_detr_decoder sam3_detr_encoder"
    " sam3_geometry_encoder sam3_lite_text sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder"
    " sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_lite_text_text_model sam3_mask_decoder"
    " sam3_tracker sam3_tracker_mask_decoder sam3_tracker_prompt_encoder sam3_tracker_video"
    " sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sam3_vision_model sam3_vit_model sam_hq"
    " sam_hq_mask_decoder sam_hq_prompt_encoder sam_hq_vision_model sam_mask_decoder sam_prompt_encoder"
    " sam_vision_model sapiens2 sapiens2_head sarvam_mla sarvam_moe seed_oss segformer seggpt sew sew-d"
    " siglip2_text_model siglip2_vision_model siglip_text_model siglip_vision_model slanet slanext slanext_vision"
    " smollm3 smolvlm_vision solar_open speech-encoder-decoder speecht5_hifigan step3p5 step3p5_vision step3p7"
    " superglue superpoint swiftformer swin swin2sr swinv2 t5_gemma_module t5gemma2 t5gemma2_decoder"
    " t5gemma2_encoder t5gemma2_text table-transformer textnet time_series_transformer timesfm timesfm2_5"
    " timesformer timm_backbone timm_wrapper tipsv2_dpt tipsv2_text_model tipsv2_vision_model ultrabert ultravbert"
    " univnet unlimited_ocr unlimited_ocr_sam_vision_model unlimited_ocr_text unlimited_ocr_vision"
    " unlimited_ocr_vision_encoder upernet uvdoc uvdoc_backbone vaultgemma vibevoice_acoustic_tokenizer"
    " vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder vibevoice_asr vibevoice_diffusion"
    " video_llama_3 video_llama_3_vision video_llava videomae videomt videoprism_text_model videoprism_vision_model"
    " vision-encoder-decoder vision-text-dual-encoder vit vit_mae vit_msn vitdet vitmatte vitpose vitpose_backbone"
    " vivit vjepa2 voxtral_encoder voxtral_realtime_encoder voxtral_realtime_text wav2vec2_phoneme wavlm"
    " wavtokenizer wavtokenizer_encoder xclip_text_model xclip_vision_model xcodec xcodec2 yolos youtu zamba zamba2"
    " zoedepth ";

/// Classes that belong to no model's type, and those for all models.
constexpr std::string_view kOtherClasses =
    " BarthezTokenizer BartphoTokenizer BertJapaneseTokenizer BertweetTokenizer BloomTokenizer ByT5Tokenizer"
    " CodeLlamaTokenizer CpmTokenizer HerbertTokenizer MBart50Tokenizer MLukeTokenizer MistralCommonBackend"
    " MyT5Tokenizer PhobertTokenizer PreTrainedTokenizer PythonBackend SentencePieceBackend"
    " Wav2Vec2PhonemeCTCTokenizer ";

bool is_word_of(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != word.npos) return false;
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    if (words[at - 1] == ' ' && words[at + word.size()] == ' ') return true;
  }
  return false;
}

}  // namespace

std::string_view class_of_model(std::string_view type) {
  for (const ClassOfModels& each : kClassesOfModels) {
    if (is_word_of(each.models, type)) return each.name;
  }
  return {};
}

bool is_misnamed_model(std::string_view type) { return is_word_of(kMisnamedModels, type); }

bool is_known_model(std::string_view type) {
  return !class_of_model(type).empty() || is_word_of(kModelsWithoutClass, type);
}

bool is_known_class(std::string_view name) {
  for (const ClassOfModels& each : kClassesOfModels) {
    if (each.name == name) return true;
  }
  return is_word_of(kOtherClasses, name);
}

}  // namespace titan
